"""Where the target's sglang lies and its version, read as text from below the target's own root."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ppscope.target.commands import parse_python
from ppscope.target.installed import Installed, Root, find_installed
from ppscope.target.procfs import Proc
from tests.unit.fake_proc import FakeProc

SITE = "opt/venv/lib/python3.12/site-packages"


def package(folder: Path, version: str = "", file: str = "_version.py") -> None:
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang" / "version.py").write_text(
        "try:\n    from sglang._version import __version__\nexcept ImportError:\n    __version__ = x()\n"
    )
    if version:
        (folder / "sglang" / file).write_text(f'__version__ = version = "{version}"\n')


def metadata(folder: Path, version: str, url: str | None = None) -> None:
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n\nVersion: 9\n")
    if url:
        (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))


def in_site(files: Path) -> dict[str, object]:
    package(files / SITE, "0.5.23")
    return {}


def in_site_by_maps(files: Path) -> dict[str, object]:
    package(files / "usr/lib/python3/dist-packages", "0.5.23")
    return {
        "argv": ["python", "-m", "sglang.launch_server"],
        "maps": ["/usr/lib/python3/dist-packages/torch/lib/libtorch.so", "/usr/lib/libc.so"],
    }


def by_metadata(files: Path) -> dict[str, object]:
    package(files / SITE)
    metadata(files / SITE, "0.5.23")
    return {}


def in_working_directory(files: Path) -> dict[str, object]:
    package(files / "srv/python", "0.5.23", "version.py")
    package(files / SITE, "0.4.0")
    return {"cwd": "/srv/python"}


def on_pythonpath(files: Path) -> dict[str, object]:
    package(files / "src", "0.5.23")
    return {"env": {"PYTHONPATH": ":/nowhere:/src"}}


def editable_by_url(files: Path) -> dict[str, object]:
    package(files / "code/sglang/python", "0.5.23")
    metadata(files / SITE, "0.0.1", "file:///code/sglang/python")
    return {}


def editable_by_pth(files: Path) -> dict[str, object]:
    package(files / "code", "0.5.23")
    (files / SITE).mkdir(parents=True)
    (files / SITE / "__editable__.sglang-0.5.pth").write_text("import x\n/code\n")
    return {}


def editable_by_finder(files: Path) -> dict[str, object]:
    package(files / "code", "0.5.23")
    (files / SITE).mkdir(parents=True)
    (files / SITE / "__editable___sglang_0_5_finder.py").write_text("MAPPING: dict = {'sglang': '/code/sglang'}\n")
    return {}


def through_absolute_links(files: Path) -> dict[str, object]:
    package(files / "real", "0.5.23")
    (files / "opt/venv/lib/python3.12").mkdir(parents=True)
    os.symlink("/real", files / SITE)
    return {}


def by_path_variable(files: Path) -> dict[str, object]:
    package(files / SITE, "0.5.23")
    (files / "opt/venv/bin").mkdir(parents=True)
    os.symlink("/usr/bin/python3.12", files / "opt/venv/bin/python")
    return {"argv": ["python", "-m", "sglang.launch_server"], "env": {"PATH": "/usr/bin:/opt/venv/bin"}}


def in_a_chroot(files: Path) -> dict[str, object]:
    package(files / "srv/python", "0.5.23", "version.py")
    return {"cwd": str(files / "srv/python")}


def by_maps_in_a_chroot(files: Path) -> dict[str, object]:
    package(files / "usr/lib/python3/dist-packages", "0.5.23")
    return {"argv": ["python"], "maps": [str(files / "usr/lib/python3/dist-packages/torch/lib/libtorch.so")]}


CASES = [
    in_a_chroot, by_maps_in_a_chroot, in_site, in_site_by_maps, by_metadata, in_working_directory, on_pythonpath,
    editable_by_url, editable_by_pth, editable_by_finder, through_absolute_links, by_path_variable,
]  # fmt: skip


def find(fake: FakeProc, setting: dict[str, object]) -> Installed:
    argv = list(map(str, setting.pop("argv", ["/opt/venv/bin/python3", "-m", "sglang.launch_server"])))  # type: ignore[call-overload]
    env = dict(setting.pop("env", {}))  # type: ignore[call-overload]
    fake.add(10, argv, env=env, exe="/usr/bin/python3.12", **setting)  # type: ignore[arg-type]
    return find_installed(Proc(fake.root), 10, argv, command=parse_python(argv), environ=env)


@pytest.mark.parametrize("case", CASES)
def test_the_package_and_its_version_are_found(tmp_path: Path, case: Callable[[Path], dict[str, object]]) -> None:
    fake = FakeProc(tmp_path)
    found = find(fake, case(fake.files))
    assert found.version == "0.5.23"
    assert found.path is not None
    assert found.path.endswith("/sglang")
    assert found.path_here is not None
    assert Path(found.path_here, "version.py").is_file()
    assert found.path_here.startswith(f"{fake.root}/10/root/")


def test_nothing_is_claimed_where_nothing_is(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    (fake.files / "srv/sglang").mkdir(parents=True)  # a checkout's own folder is no package
    assert find(fake, {}) == Installed(None, None, None, None)


def test_isolated_python_does_not_import_from_its_working_directory(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    package(fake.files / "srv", "0.4.0")
    package(fake.files / SITE, "0.5.23")
    assert find(fake, {"argv": ["/opt/venv/bin/python3", "-P", "-m", "sglang.launch_server"]}).version == "0.5.23"


def test_links_cannot_lead_out_of_the_targets_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("ours")
    inside = tmp_path / "root"
    inside.mkdir()
    for number, target in enumerate([str(outside), "../outside.txt", "../../../../../../etc/hostname", "loop3"]):
        os.symlink(target, inside / f"loop{number}")
    os.mkfifo(inside / "pipe")
    root = Root(str(inside))
    assert [root.text(f"/loop{number}") for number in range(4)] == [None] * 4
    assert root.text("/pipe") is None  # would block
    assert root.text("/../../outside.txt") is None
