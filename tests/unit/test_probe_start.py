"""Getting into the processes of a server: sitecustomize, spawn and fork; helpers and other sitecustomizes left alone."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ppscope.commands.launch import SITE, environment
from ppscope.probe.start import is_helper
from tests.pythons import interpreter
from tests.shared import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEDULER = """
import os
from sglang.srt.managers.mixin import SchedulerPPMixin

class Scheduler(SchedulerPPMixin):
    def __init__(self, rank): self.pp_rank = rank
    def ingest_requests(self): return []
    def get_next_batch_to_run(self): return "batch"
    def run_batch(self, batch): return batch

def run_scheduler_process(rank, out):
    scheduler = Scheduler(rank)
    scheduler.init_pp_loop_state()
    for turn in range(4):
        scheduler.ingest_requests()
        scheduler._pp_launch_batch(turn % 2, scheduler.get_next_batch_to_run())
    import sys
    names = {m.partition(".")[0] for m in sys.modules if m.startswith("ppscope")}
    out.put((os.getpid(), sorted(names), type(sys.meta_path[0]).__name__))
"""
MIXIN = """
class SchedulerPPMixin:
    def init_pp_loop_state(self): self.pp_loop_size = 2
    def _pp_launch_batch(self, mb_id, batch): return self.run_batch(batch)
"""
SERVER = """
import json, multiprocessing, os, sys
from pathlib import Path

def helper(out):
    from sglang.srt.managers import scheduler  # as the detokenizer does
    out.put(os.getpid())

if __name__ == "__main__":
    from sglang.srt.managers.scheduler import run_scheduler_process
    context = multiprocessing.get_context(sys.argv[1])
    out = context.Queue()
    shared = context.Value("i", 0)  # starts the resource tracker
    children = [context.Process(target=run_scheduler_process, args=(rank, out)) for rank in range(2)]
    children.append(context.Process(target=helper, args=(out,)))
    for child in children: child.start()
    found = [out.get() for _ in children]
    for child in children: child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    import sitecustomize
    print(json.dumps({"pid": os.getpid(), "found": found, "other": getattr(sitecustomize, "OTHER", None), "path": sys.path}))
    sys.exit(5)
"""


@pytest.fixture
def server(tmp_path: Path) -> Path:
    package = tmp_path / "sglang" / "srt" / "managers"
    package.mkdir(parents=True)
    for folder in (tmp_path / "sglang", tmp_path / "sglang" / "srt", package):
        (folder / "__init__.py").touch()
    (package / "scheduler.py").write_text(SCHEDULER)
    (package / "mixin.py").write_text(MIXIN)
    (tmp_path / "server.py").write_text(SERVER)
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("OTHER = 'the one that was there before'\n")
    return tmp_path


def run(server: Path, *command: str, shm: Path, mode: str | None = "always") -> subprocess.CompletedProcess[str]:
    base = {**os.environ, "PYTHONPATH": os.pathsep.join([str(server / "other"), str(server)])}
    env = environment(base, gpu_timing=False) if mode else base
    # The probe's folder is /dev/shm's in earnest; here a private one, told to it by its only argument.
    (server / "other" / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
        OTHER = 'the one that was there before'
        import sys
        if "ppscope_probe.recorder" in sys.modules:
            for finder in sys.meta_path:
                if type(finder).__name__ == "Hook":
                    finder._recorder.base = {str(shm)!r}
        """)
    )
    return subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, timeout=60, check=False, cwd=server
    )


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_schedulers_write_and_nobody_else_does(server: Path, tmp_path: Path, method: str) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    done = run(server, "server.py", method, shm=shm)
    assert done.returncode == 5, done.stderr
    told = json.loads(done.stdout)
    assert told["other"] == "the one that was there before"
    assert str(SITE) not in told["path"]
    schedulers = [entry for entry in told["found"] if isinstance(entry, list)]
    assert [entry[1:] for entry in schedulers] == [[["ppscope_probe"], "Hook"]] * 2
    rings = {int(path.name.split("-")[2]) for path in shm.glob("*/ring-*")}
    assert rings == {entry[0] for entry in schedulers}, (
        "one ring a scheduler: none of the launcher, the helper, the tracker"
    )
    assert not done.stderr


def test_without_the_gate_nothing_happens(server: Path, tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    told = json.loads(run(server, "server.py", "spawn", shm=shm, mode=None).stdout)
    assert [entry[1] for entry in told["found"] if isinstance(entry, list)] == [[], []]
    assert not list(shm.iterdir())


def test_a_broken_sitecustomize_of_others_breaks_as_it_did(server: Path) -> None:
    (server / "other" / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    base = {**os.environ, "PYTHONPATH": str(server / "other")}
    outputs = [
        subprocess.run([sys.executable, "-c", "print(1)"], env=env, capture_output=True, text=True, check=False)
        for env in (base, environment(base, gpu_timing=False))
    ]
    assert [done.stdout for done in outputs] == ["1\n", "1\n"]
    assert all("mine" in done.stderr for done in outputs)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8", "3.9"])
def test_a_python_too_old_for_the_probe_goes_its_way_without_a_word(version: str, tmp_path: Path) -> None:
    """The helper scripts that a server starts inherit PYTHONPATH, whatever Python they run on."""
    old = interpreter(version, "os")
    if old is None:
        pytest.skip(f"Python {version} is not on this machine")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.stdout.write('other ')\n")
    env = environment({**os.environ, "PYTHONPATH": str(tmp_path)}, gpu_timing=False)
    done = subprocess.run([old, "-c", "print(1)"], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1] == "1"
    assert not done.stderr
    if not version.startswith("2"):
        assert done.stdout == "other 1\n"


def test_the_first_file_is_of_syntax_and_version_that_any_python_takes() -> None:
    """Where none of the old ones is on this machine: as if this one were old."""
    source = (SITE / "sitecustomize.py").read_text()
    words = {type(node).__name__ for node in ast.walk(ast.parse(source))}
    assert not words & {"JoinedStr", "AnnAssign", "NamedExpr", "Match", "AsyncFunctionDef"}
    assert not [node for node in ast.walk(ast.parse(source)) if getattr(node, "returns", None)]
    script = f"import runpy, sys; sys.version_info = (3, 9, 18); del sys.orig_argv; runpy.run_path({str(SITE / 'sitecustomize.py')!r})"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], env=environment(os.environ, gpu_timing=False), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_environment_keeps_what_was_there() -> None:
    env = environment({"PYTHONPATH": f"/a{os.pathsep}{os.pathsep}/b", "X": "1"}, gpu_timing=True)
    assert env == {
        "PYTHONPATH": os.pathsep.join([str(SITE), "/a", "", "/b"]), "X": "1", "PPSCOPE_PROBE": "always", "PPSCOPE_GPU_TIMING": "1",
    }  # fmt: skip
    for before, after in (("", ""), ("/x", ":/x"), (":/x", "::/x"), (None, "")):
        given = {} if before is None else {"PYTHONPATH": before}
        assert environment(given, gpu_timing=False)["PYTHONPATH"] == f"{SITE}{after}", (
            "an empty entry is the current folder"
        )
    again = environment(env | {"PPSCOPE_PROBE": "wanted"}, gpu_timing=False)
    assert again["PYTHONPATH"] == env["PYTHONPATH"], "put there once"
    assert again["PPSCOPE_PROBE"] == "wanted"
    assert "PPSCOPE_GPU_TIMING" not in again


@pytest.mark.parametrize(
    ("argv", "helper"),
    [
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(7)"], True),
        (["python", "-c", "from multiprocessing.forkserver import main; main(4, 5)"], True),
        (
            ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(4)", "--multiprocessing-fork"],
            False,
        ),
        (["python", "-m", "sglang.launch_server"], False),
    ],
)
def test_helpers_of_multiprocessing_are_told_by_their_command(argv: list[str], helper: bool) -> None:
    assert is_helper(argv) is helper


def test_the_plugin_is_found_by_its_entry_point_and_sleeps(server: Path, tmp_path: Path) -> None:
    """As SGLang's own loader does it: the group's entry points, loaded and called, after the scheduler was imported."""
    shm = tmp_path / "shm"
    shm.mkdir()
    script = f"""
        import importlib.metadata, multiprocessing, queue, sys
        from sglang.srt.managers.scheduler import Scheduler, run_scheduler_process
        for entry in importlib.metadata.entry_points(group="sglang.srt.plugins"):
            if entry.name == "ppscope":
                entry.load()(); entry.load()()
        hooks = [finder for finder in sys.meta_path if type(finder).__name__ == "Hook"]
        assert len(hooks) == 1, hooks
        hooks[0]._recorder.base = {str(shm)!r}
        out = queue.Queue()
        run_scheduler_process(0, out)
        assert hooks[0]._recorder.state == "dormant", hooks[0]._recorder.facts
        """
    dist = server / "ppscope-0.1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: ppscope\nVersion: 0.1.0\n")
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["sglang.srt.plugins"]
    (dist / "entry_points.txt").write_text("[sglang.srt.plugins]\n" + "".join(f"{k} = {v}\n" for k, v in group.items()))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(server)}, capture_output=True, text=True, check=False, cwd=server,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [path.name.partition("-")[0] for path in shm.glob("*/*")] == ["wanted"]
