"""Where the target's `sglang` package lies and which version it is, found from outside without importing anything.

The search follows the target's own sys.path: working or script folder, PYTHONPATH, user site, the site-packages of its
environment, editable installs there. Files are opened below /proc/PID/root, so a container's own files are read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ppscope.target.commands import PythonCommand
from ppscope.target.procfs import Proc

_SITE = re.compile(r"(/.*?/(?:site|dist)-packages)/")
_MAPPING = re.compile(r"['\"]sglang['\"]\s*:\s*['\"]([^'\"]+)['\"]")
_VERSION = re.compile(r"^__version__\s*(?::\s*\w+\s*)?=\s*(?:version\s*=\s*)?['\"]([^'\"]{1,64})['\"]", re.MULTILINE)
_MAX_LINKS = 40
_MAX_BYTES = 1 << 20


class Installed(NamedTuple):
    """The package folder as the target names it and as it can be opened from here, and its version; None where not found."""

    path: str | None
    path_here: str | None
    version: str | None
    version_source: str | None


class Root:
    """The file system of a process. Symbolic links are followed below it by hand: the kernel would follow absolute ones in ours."""

    def __init__(self, folder: str) -> None:
        self.folder = folder.rstrip("/")

    def resolve(self, path: str) -> str:
        """Path of the real file, as it can be opened from here; a link cannot lead out of the root."""
        done: list[str] = []
        todo = [part for part in reversed(path.split("/")) if part]
        links = 0
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                del done[-1:]
                continue
            here = "/".join([self.folder, *done, part])
            try:
                target = os.readlink(here)
            except OSError:
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                break
            if target.startswith("/"):
                done.clear()
            todo.extend(piece for piece in reversed(target.split("/")) if piece)
        return "/".join([self.folder, *done])

    def is_dir(self, path: str) -> bool:
        """Whether a folder is there."""
        return os.path.isdir(self.resolve(path))

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty when it cannot be read."""
        try:
            return sorted(os.listdir(self.resolve(path)))
        except OSError:
            return []

    def text(self, path: str) -> str | None:
        """At most a megabyte of a regular file; None when it cannot be read."""
        real = self.resolve(path)
        try:
            if not os.path.isfile(real):
                return None
            with open(real, "rb") as file:
                return file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return None


def find_installed(
    proc: Proc,
    pid: int,
    argv: Sequence[str],
    *,
    command: PythonCommand | None,
    environ: Mapping[str, str],
    more_pids: Sequence[int] = (),
) -> Installed:
    """Locate the package of the launcher `pid`; `more_pids` are its schedulers, whose mapped files also name site-packages."""
    folder = proc.path(pid, "root")
    root = Root(folder)
    sites = site_folders(proc, root, pid, argv, environ=environ, more_pids=more_pids)
    path = None
    for candidate in [*_before_site(proc, root, pid, command, environ), *sites]:
        path = _package_in(root, candidate)
        if path is not None:
            break
    if path is None:
        path = next((found for site in sites if (found := _editable(root, site)) is not None), None)
    version, source = _version(root, path, sites)
    return Installed(path, None if path is None else _here(proc, pid, root.resolve(path)), version, source)


def _here(proc: Proc, pid: int, resolved: str) -> str:
    """The plain path where the target's root is ours, so that it outlives the process."""
    theirs, ours = proc.link(pid, "root"), proc.link("self", "root")
    plain = resolved[len(proc.path(pid, "root")) :]
    return plain if theirs == "/" == ours and os.path.isdir(plain) else resolved


def _before_site(
    proc: Proc, root: Root, pid: int, command: PythonCommand | None, environ: Mapping[str, str]
) -> list[str]:
    cwd = proc.link(pid, "cwd") or "/"
    folders: list[str] = []
    safe = command is not None and (command.isolated or bool(environ.get("PYTHONSAFEPATH")))
    if command is not None and not safe:
        if command.script is not None:
            script = os.path.join(cwd, command.script)
            folders.append(os.path.dirname(root.resolve(script)[len(root.folder) :]))
        else:
            folders.append(cwd)
    folders += [os.path.join(cwd, item) for item in environ.get("PYTHONPATH", "").split(":") if item]
    return folders


def site_folders(
    proc: Proc, root: Root, pid: int, argv: Sequence[str], *, environ: Mapping[str, str], more_pids: Sequence[int] = ()
) -> list[str]:
    """The site-packages folders of a process, most trusted first: those it maps libraries from, then those of its interpreter."""
    counts: dict[str, int] = {}
    for one in (pid, *more_pids):
        for name in proc.mapped_files(one) or ():
            if match := _SITE.match(name):
                counts[match[1]] = counts.get(match[1], 0) + 1
        if counts:
            break
    found = sorted(counts, key=lambda name: -counts[name])
    for prefix in _prefixes(proc, root, pid, argv, environ):
        for library in ("lib", "lib64", "local/lib"):
            for name in root.names(f"{prefix}/{library}"):
                if re.fullmatch(r"python3(\.\d+)?t?", name):
                    found += [f"{prefix}/{library}/{name}/{kind}-packages" for kind in ("site", "dist")]
    return [folder for folder in dict.fromkeys(found) if root.is_dir(folder)]


def _prefixes(proc: Proc, root: Root, pid: int, argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Folders that hold a bin/python of this process: its virtual environment before its base installation."""
    cwd = proc.link(pid, "cwd") or "/"
    programs: list[str] = []
    if argv and "/" in argv[0]:
        programs.append(os.path.join(cwd, argv[0]))
    elif argv:
        programs += [
            os.path.join(cwd, folder, argv[0])
            for folder in environ.get("PATH", "").split(":")
            if folder and os.path.lexists(root.resolve(os.path.join(cwd, folder)) + "/" + argv[0])
        ][:1]
    prefixes = [os.path.normpath(os.path.join(os.path.dirname(program), "..")) for program in programs]
    if environ.get("VIRTUAL_ENV"):
        prefixes.append(environ["VIRTUAL_ENV"])
    if environ.get("HOME") and not environ.get("PYTHONNOUSERSITE"):
        prefixes.append(environ["HOME"] + "/.local")
    exe = (proc.link(pid, "exe") or "").removesuffix(" (deleted)")
    if exe:
        prefixes.append(os.path.normpath(os.path.join(os.path.dirname(exe), "..")))
    return list(dict.fromkeys([*prefixes, "/usr/local", "/usr"] if exe.startswith("/usr") else prefixes))


def _package_in(root: Root, folder: str) -> str | None:
    """The `sglang` package in a folder of sys.path; a checkout of the repository has the same name but is none."""
    path = os.path.join(folder, "sglang")
    return path if any(root.text(f"{path}/{name}") is not None for name in ("version.py", "launch_server.py")) else None


def _editable(root: Root, site: str) -> str | None:
    """The package of an editable install recorded in this site-packages: direct_url.json, a .pth line or a finder's mapping."""
    for name in root.names(site):
        lower = name.lower()
        if not ("sglang" in lower or lower.endswith((".pth", ".egg-link"))):
            continue
        text: str | None = None
        folders: list[str] = []
        if re.fullmatch(r"sglang-[^/]*\.dist-info", lower):
            text = root.text(f"{site}/{name}/direct_url.json")
            url = _url_of(text)
            folders = [url, f"{url}/python"] if url else []
        elif lower.endswith((".pth", ".egg-link")):
            text = root.text(f"{site}/{name}") or ""
            folders = [line.strip() for line in text.split("\n") if line.startswith("/")]
        elif lower.startswith("__editable__") and lower.endswith(".py"):
            folders = [os.path.dirname(found) for found in _MAPPING.findall(root.text(f"{site}/{name}") or "")]
        for folder in folders:
            if path := _package_in(root, folder):
                return path
    return None


def _url_of(text: str | None) -> str | None:
    try:
        parsed = json.loads(text or "null")
    except ValueError:
        return None
    url = parsed.get("url") if isinstance(parsed, dict) else None
    return unquote(urlsplit(url).path) if isinstance(url, str) and url.startswith("file://") else None


def _version(root: Root, path: str | None, sites: Sequence[str]) -> tuple[str | None, str | None]:
    """What `sglang.__version__` is: the package's own text first, then the metadata beside it, then any installed metadata."""
    folders = list(sites)
    if path is not None:
        for name in ("_version.py", "version.py"):
            if match := _VERSION.search(root.text(f"{path}/{name}") or ""):
                return match[1], name
        folders.insert(0, os.path.dirname(path))
    for folder in folders:
        for name in root.names(folder):
            if re.fullmatch(r"sglang-[^/]+\.(dist|egg)-info", name):
                for file in ("METADATA", "PKG-INFO"):
                    text = root.text(f"{folder}/{name}/{file}") or ""
                    if match := re.search(r"^Version:\s*(\S{1,64})", text, re.MULTILINE):
                        return match[1], "dist-info"
    return None, None
