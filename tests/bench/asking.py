"""Clients that ask the server all the time, each for another number of tokens, until they are ended.

    python asking.py URL CLIENTS

With one number for all, requests start and end together, and the rate swings by a fifth with the length of their contexts.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import urllib.request
from http.client import HTTPException

TOKENS = (384, 768)
"""From the third of a context of 2,048 on; eight of these fit into the kit's 8,192 tokens."""


def ask(url: str, chance: random.Random) -> None:
    """One client's life."""
    tokens = chance.randint(1, TOKENS[1])
    while True:
        sampling = {"max_new_tokens": tokens, "temperature": 0.8, "ignore_eos": True}
        body = json.dumps({"text": "the quick brown fox jumps over lazy dog", "sampling_params": sampling}).encode()
        request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
        except (OSError, HTTPException):
            time.sleep(0.5)
        tokens = chance.randint(*TOKENS)


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        threading.Thread(target=ask, args=(sys.argv[1], random.Random(number))).start()
