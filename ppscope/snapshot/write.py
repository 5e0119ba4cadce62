"""The HTML page: one file that loads nothing, whose script and style are named by hash in its own Content-Security-Policy."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ppscope import __version__
from ppscope.snapshot.page_data import embed


def page(data: Mapping[str, Any]) -> bytes:
    """A page that shows these data: a snapshot's document, or a comparison's."""
    script, style = _script(), _read("snapshot.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    drawn, kept = embed(dict(data))
    text = _read("template.html")
    for name, value in (
        ("@VERSION@", __version__),
        ("@POLICY@", policy),
        ("@STYLE@", style),
        ("@SCRIPT@", script),
        ("@DATA@", drawn),
        ("@KEPT@", kept),
    ):
        text = text.replace(name, value, 1)
    return text.encode()


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@lru_cache(maxsize=1)
def _script() -> str:
    """All scripts of the page in the order of their names, in a scope of their own."""
    folder = files("ppscope.snapshot").joinpath("page")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".js"))
    body = "\n".join(_read(name) for name in names)
    return f'(() => {{\n"use strict";\n{body}\n}})();\n'


@lru_cache(maxsize=16)
def _read(name: str) -> str:
    return files("ppscope.snapshot").joinpath("page").joinpath(name).read_text(encoding="utf-8")
