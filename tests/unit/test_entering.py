"""Which folders another user may enter: the verdict against the kernel's own, asked as that user."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ppscope.doctor import gather_target
from ppscope.sources import burst_folder
from ppscope.sources.burst_folder import VARIABLE, FolderError, make_folder
from ppscope.target.entering import Who, barred, who
from ppscope.target.procfs import Proc

USER, GROUP, EXTRA = 65534, 65533, 65532

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")


@pytest.fixture
def tree() -> Iterator[Path]:
    """`outer/inner`, where everybody comes to; pytest's own folder is for its user alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "outer" / "inner").mkdir(parents=True)
        yield Path(name)


@contextmanager
def visitor(folder: Path) -> Iterator[tuple[int, bool]]:
    """A process of another user: its pid, and whether it came into the folder."""
    with subprocess.Popen(
        ["/bin/sh", "-c", 'cd "$0" && echo in || echo out; read end', str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd="/",
        user=USER,
        group=GROUP,
        extra_groups=[EXTRA],
    ) as child:
        assert child.stdout is not None
        yield child.pid, child.stdout.readline() == "in\n"


@pytest.mark.parametrize("mode", [0o700, 0o611, 0o711, 0o170, 0o710, 0o107, 0o007, 0o070])
@pytest.mark.parametrize("owner", [(0, 0), (USER, 0), (0, GROUP), (0, EXTRA)])
@pytest.mark.parametrize("where", ["outer", "outer/inner"])
def test_the_folder_of_a_burst_is_one_that_the_servers_user_comes_to(
    tree: Path, where: str, owner: tuple[int, int], mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather_target, "LEAST_FREE_BYTES", 0)
    monkeypatch.setattr(burst_folder, "LEAST_FREE_BYTES", 0)
    chosen = tree / "outer" / "inner"
    monkeypatch.setenv(VARIABLE, str(chosen))
    os.chown(tree / where, *owner)
    (tree / where).chmod(mode)
    with visitor(chosen) as (pid, entered):
        why = "" if entered else f"the server's user may not enter {tree / where}"
        assert gather_target._folders(Proc(), pid) == ((str(chosen), why),)
        if entered:
            assert Path(make_folder(pid).here).is_dir()
        else:
            with pytest.raises(FolderError, match=re.escape(why)):
                make_folder(pid)
            assert list(chosen.iterdir()) == []


def test_a_link_leads_through_its_own_folder_and_through_that_of_its_target(tree: Path) -> None:
    (tree / "link").symlink_to(tree / "outer" / "inner")
    stranger = Who(USER, frozenset(), passes=False)
    assert barred(str(tree / "link"), "", stranger) is None
    (tree / "outer").chmod(0o700)
    assert barred(str(tree / "link"), "", stranger) == str(tree / "outer")
    assert barred("/link", str(tree), stranger) is None, "a link of another tree is not followed"
    assert barred("/outer/inner", str(tree), stranger) == "/outer"


def test_an_access_list_may_let_in_whom_the_bits_do_not(tree: Path) -> None:
    entries = ((1, 7, 0), (2, 1, USER), (4, 0, 0), (16, 1, 0), (32, 0, 0))
    rules = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, bits, name or 0xFFFFFFFF) for tag, bits, name in entries
    )
    try:
        os.setxattr(tree / "outer", "system.posix_acl_access", rules)
    except OSError:
        pytest.skip("no access lists here")
    with visitor(tree / "outer") as (_, entered):
        assert entered
    assert barred(str(tree / "outer"), "", Who(USER, frozenset(), passes=False)) is None


def test_roots_rights_pass_and_what_cannot_be_read_claims_nothing(tree: Path) -> None:
    own = who(Proc(), os.getpid())
    assert own is not None
    assert own.uid == 0
    (tree / "outer").chmod(0)
    assert barred(str(tree / "outer"), "", own._replace(passes=True)) is None
    assert who(Proc(), 1 << 22) is None
