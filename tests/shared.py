"""Where the public traces and the SGLang-on-CPU kit lie, for the tests that read them."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
KIT = SHARED / "sglang-cpu" / "recipe.sh"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (public traces, SGLang kit) is not here")
needs_kit = pytest.mark.skipif(
    not KIT.is_file(), reason="../shared/sglang-cpu (the kit that runs SGLang on CPU) is not here"
)
