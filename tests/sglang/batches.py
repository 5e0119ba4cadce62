"""Load that is serial under SGLang's own micro-batch limit: all prompts in one request, which one slot takes."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.sglang.server import SglangServer


def post(server: SglangServer, path: str, body: object, timeout_s: float = 120.0) -> bytes:
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", data=data, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return bytes(answer.read())


def generate(server: SglangServer, prompts: int, tokens: int) -> None:
    """One batched request. Of token ids, not text: texts are tokenized and sent one by one (tokenizer_manager.py
    `_should_use_batch_tokenization`), and on a crowded machine their first ones are scheduled before the last arrive."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    ids = [[100 + i, 7, 8, 9] for i in range(prompts)]
    post(server, "/generate", {"input_ids": ids, "sampling_params": sampling})


@contextmanager
def batches_of(server: SglangServer, prompts: int, tokens: int = 128) -> Iterator[None]:
    """One batched request after the other while the block runs: its prompts arrive in one message."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            generate(server, prompts, tokens)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(1.5)
    try:
        yield
    finally:
        stop.set()
        asking.join()
