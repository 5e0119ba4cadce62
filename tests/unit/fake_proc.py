"""Builds a /proc tree in a temporary folder, process by process, for tests of everything that reads /proc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

SPAWN = (
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=7, pipe_handle=9)",
    "--multiprocessing-fork",
)
TRACKER = ("-c", "from multiprocessing.resource_tracker import main;main(6)")


class FakeProc:
    """A /proc tree. What is not given to a process (environment, descriptors, maps) cannot be read, as with another user's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "proc"
        self.root = str(self.folder)
        self.files = folder / "files"
        self.files.mkdir(parents=True)
        (self.folder / "self" / "ns").mkdir(parents=True)
        (self.folder / "self" / "ns" / "net").symlink_to("net:[1]")
        (self.folder / "self" / "root").symlink_to("/")

    def add(
        self,
        pid: int,
        argv: Sequence[str] | str,
        ppid: int = 1,
        *,
        comm: str | None = None,
        state: str = "S",
        started: int | None = None,
        uid: int = 0,
        ns_pids: Sequence[int] = (),
        threads: int = 3,
        env: Mapping[str, str] | None = None,
        exe: str | None = None,
        cwd: str = "/srv",
        fds: Sequence[str] | None = None,
        maps: Sequence[str] | None = None,
        net: str = "net:[1]",
        tcp: Sequence[str] = (),
    ) -> int:
        """Add a process; a text for `argv` is a title, padded as setproctitle leaves it."""
        here = self.folder / str(pid)
        (here / "ns").mkdir(parents=True)
        raw = (
            argv.encode().ljust(160, b"\0")
            if isinstance(argv, str)
            else b"".join(word.encode() + b"\0" for word in argv)
        )
        (here / "cmdline").write_bytes(raw)
        name = (
            comm
            if comm is not None
            else (argv if isinstance(argv, str) else argv[0].rsplit("/", 1)[-1] if argv else "kthread")
        )
        fields = ["0"] * 50
        fields[0], fields[1], fields[17], fields[19] = (
            state,
            str(ppid),
            str(threads),
            str(pid * 10 if started is None else started),
        )
        (here / "stat").write_text(f"{pid} ({name[:15]}) {' '.join(fields)}\n")
        inner = " ".join(str(number) for number in (ns_pids or (pid,)))
        (here / "status").write_text(
            f"Name:\t{name[:15]}\nTgid:\t{pid}\nPid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{inner}\n"
        )
        if env is not None:
            (here / "environ").write_bytes(b"".join(f"{key}={value}\0".encode() for key, value in env.items()))
            (here / "cwd").symlink_to(cwd)
            (here / "root").symlink_to(self.files)
            (here / "ns" / "net").symlink_to(net)
        if exe is not None:
            (here / "exe").symlink_to(exe)
        if fds is not None:
            (here / "fd").mkdir()
            for number, target in enumerate(fds):
                (here / "fd" / str(number)).symlink_to(target)
        if maps is not None:
            (here / "maps").write_text("".join(f"7f00-7fff r-xp 0 08:01 1    {name}\n" for name in maps))
        (here / "net").mkdir()
        head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        (here / "net" / "tcp").write_text(head + "".join(f"{line}\n" for line in tcp))
        return pid

    def thread(self, tid: int, of: int) -> int:
        """A thread's folder, which /proc has without listing it: here it is a link to a copy of the status alone."""
        here = self.folder / str(tid)
        here.mkdir()
        (here / "status").write_text((self.folder / str(of) / "status").read_text())
        return tid


def listening(host_hex: str, port: int, inode: int, state: str = "0A") -> str:
    """A line of /proc/net/tcp."""
    ends = f"{host_hex}:{port:04X} 00000000:0000"
    return f"   0: {ends} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0 100 0 0 10 0"


LOCALHOST = "0100007F"
ANYWHERE = "00000000"
