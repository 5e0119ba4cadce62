"""From `python -m ppscope.emulator` to a process that looks like `python -m sglang.launch_server`: a private folder and one exec.

The private folder holds a package `sglang` whose `srt` and `torch` are links to the emulator's own sources, so that stacks show
SGLang's file names, and is the new process's working directory, which `-m` puts first on the path.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ppscope.emulator.options import Options

FOLDER_PREFIX = "ppscope-emulator-"
OWNER_FILE = "owner"
PACKAGE_DIR = Path(__file__).resolve().parent
LAUNCH_SERVER = '''"""Entry point of an emulated server."""

import os
import sys

# After the folder itself and the standard library, so that a checkout's or an installation's other modules come last.
sys.path.append({root!r})

if __name__ == "__main__":
    from sglang.srt.entrypoints.engine import serve

    sys.exit(serve(os.getcwd()))
'''


def make_folder() -> str:
    """Create the private folder (mode 0700) with the stand-in package; return its path."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    (folder / OWNER_FILE).write_text(str(os.getpid()))
    package = folder / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text('"""Stand-in for SGLang: the emulator of ppscope."""\n')
    (package / "version.py").write_text('__version__ = "0.5.23"\n')
    (package / "launch_server.py").write_text(LAUNCH_SERVER.format(root=str(PACKAGE_DIR.parent.parent)))
    for name in ("srt", "torch"):
        (package / name).symlink_to(PACKAGE_DIR / name)
    return str(folder)


def sweep() -> None:
    """Remove folders whose launcher is gone: only a kill of the whole process group leaves one."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            owner = int((folder / OWNER_FILE).read_text())
        except (OSError, ValueError):
            continue
        if not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def bound_socket(port: int) -> socket.socket:
    """Return a socket bound to a loopback port, 0 for any; it does not listen yet. Raises OSError when the port is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def environment(options: Options) -> dict[str, str]:
    """Return the launcher's environment: where the emulated GPUs are, and which of them it may use."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if "PPSCOPE_PROBE" in env and "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]  # `ppscope launch` puts the probe there
    ranks = options.pp_size * options.tp_size
    if options.gpus_told:
        env["PPSCOPE_EMULATED_GPUS"] = options.gpus_file
    env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in range(ranks))
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if options.scenario.device_timer:
        env["SGLANG_ENABLE_METRICS_DEVICE_TIMER"] = "1"
    if options.scenario.uneven_layers:
        env["SGLANG_PP_LAYER_PARTITION"] = ",".join(map(str, options.scenario.layers(options.pp_size)))
    return env


def become_launcher(options: Options) -> None:
    """Replace this process by the launcher. The announcements go to what is standard output now."""
    sweep()
    listener = bound_socket(options.port)
    announce = os.dup(1)
    for descriptor in (listener.fileno(), announce):
        os.set_inheritable(descriptor, True)
    options = replace(
        options,
        port=listener.getsockname()[1],
        folder=make_folder(),
        listen_fd=listener.fileno(),
        announce_fd=announce,
    )
    options.write()
    os.chdir(options.folder)
    argv = [sys.executable, "-m", "sglang.launch_server", *options.server_argv()]
    os.execve(sys.executable, argv, environment(options))
