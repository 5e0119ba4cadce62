"""One real server at a time; pytest groups the tests by the server they ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sglang.server import ServerSpec, SglangServer, running
from tests.shared import KIT


@pytest.fixture(scope="session")
def sglang_server(request: pytest.FixtureRequest) -> Iterator[SglangServer]:
    """A running server; parametrise indirectly with a ServerSpec."""
    if not KIT.is_file():
        pytest.skip("../shared/sglang-cpu (the kit that runs SGLang on CPU) is not here")
    spec: ServerSpec = getattr(request, "param", ServerSpec())
    with running(spec) as server:
        yield server
