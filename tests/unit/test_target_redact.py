"""Planted secrets never survive, and what is needed to understand a server does."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.target import redact
from ppscope.target.redact import MARKER, redact_argv, redact_mapping, redact_text

SECRET = "Zq7-planted_SECRET.v4lue"
FLAGS = [
    "--api-key", "--admin-api-key", "--ssl-keyfile", "--ssl-certfile", "--ssl-keyfile-password", "--hf-token", "--token", "--password",
    "--client-secret", "--aws-secret-access-key", "--api", "--admin", "--watermark-key", "--db_passwd", "--auth-header", "--use-auth-token",
]  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("form", ["{flag} {secret}", "{flag}={secret}", "{flag} '{secret}'", '{flag}="{secret}"'])
def test_a_secret_behind_a_flag_is_removed_from_argv_and_from_text(flag: str, form: str) -> None:
    line = form.format(flag=flag, secret=SECRET)
    assert SECRET not in redact_text(f'bash -c "python -m sglang.launch_server {line} --port 30000"')
    argv = ["python", "-m", "sglang.launch_server", *line.replace("'", "").replace('"', "").split(), "--port", "30001"]
    out = redact_argv(argv)
    assert SECRET not in " ".join(out)
    assert out[-2:] == ("--port", "30001")
    assert MARKER in " ".join(out)


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--prompt", f"tell {SECRET} me"], ("--prompt", MARKER)),
        ([f"--prompt={SECRET}"], (f"--prompt={MARKER}",)),
        (["--prompts", "a", SECRET, "-b"], ("--prompts", MARKER, MARKER, MARKER)),
        (["--system-prompt", SECRET], ("--system-prompt", MARKER)),
        (["--messages", f'[{{"content": "{SECRET}"}}]'], ("--messages", MARKER)),
        (["--input_text", SECRET], ("--input_text", MARKER)),
    ],
)
def test_what_is_said_to_a_server_is_removed_from_a_command_line(words: list[str], left: tuple[str, ...]) -> None:
    out = redact_argv(["python", "offline.py", *words, "--tp", "2"])
    assert out == ("python", "offline.py", *left, "--tp", "2")


def test_the_text_of_a_program_is_removed_and_a_script_of_that_option_is_not() -> None:
    assert redact_argv(["python3", "-c", f"print('{SECRET}')", "x"]) == ("python3", "-c", MARKER, "x")
    assert redact_argv(["python3", "-u", "-P", "-c", SECRET]) == ("python3", "-u", "-P", "-c", MARKER)
    assert redact_argv(["python3", "serve.py", "-c", "config"]) == ("python3", "serve.py", "-c", "config")
    assert SECRET not in redact_text(f"https://x.blob.core.windows.net/models?se=1&sig={SECRET}")


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (["-W", "ignore", "-c", SECRET], ["-W", "ignore", "-c", MARKER]),
        (["-X", "dev", "-c", SECRET], ["-X", "dev", "-c", MARKER]),
        (["-uc", SECRET], ["-uc", MARKER]),
        ([f"-c{SECRET}"], [f"-c{MARKER}"]),
        ([f"-uBcprompt = '{SECRET}'"], [f"-uBc{MARKER}"]),
        (["-Werror", "--check-hash-based-pycs", "never", "-c", f"-{SECRET}"],
         ["-Werror", "--check-hash-based-pycs", "never", "-c", MARKER]),
    ],
)  # fmt: skip
def test_the_text_of_a_program_is_removed_however_python_is_told_of_it(flags: list[str], left: list[str]) -> None:
    out = redact_argv(["/usr/bin/python3.12", *flags, "its", "own", "words"])
    assert out == ("/usr/bin/python3.12", *left, "its", "own", "words")
    assert redact_argv(["python3", *flags]) == ("python3", *left)


def test_a_command_line_without_a_program_behind_the_option_stays() -> None:
    for words in (["python3", "-c"], ["python3", "-uc"], ["python3", "-W", "ignore", "x.py", "-uc", "y"], ["python3"]):
        assert redact_argv(words) == tuple(words)


@given(
    before=st.sampled_from(["", "my-", "x_", "hf-"]),
    word=st.sampled_from(["key", "token", "secret", "password", "KEY", "Token"]),
    after=st.sampled_from(["", "-file", "_2", "-value"]),
    secret=st.text(min_size=12, max_size=30).filter(lambda text: not text.isspace() and MARKER not in text),
    equals=st.booleans(),
)
def test_no_flag_like_a_secret_lets_its_value_through(
    before: str, word: str, after: str, secret: str, equals: bool
) -> None:
    flag = f"--{before}{word}{after}"
    argv = ["python", f"{flag}={secret}", "x"] if equals else ["python", flag, secret, "x"]
    out = redact_argv(argv)
    assert all(secret not in item for item in out)
    assert out[0] == "python"
    assert secret not in str(redact_mapping({"outer": {flag[2:]: secret}, "list": [{flag[2:]: [secret]}]}))


@pytest.mark.parametrize(
    "text",
    [
        f"https://user:{SECRET}@host/path",
        f"redis://:{SECRET}@host:6379/0",
        f"https://host/hook?token={SECRET}&x=1",
        f"https://host/hook?x=1&api_key={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"-H 'Authorization: Basic {SECRET}'",
        f"Authorization: Token id {SECRET}",
        f"Proxy-Authorization: Digest realm=x, response={SECRET}, uri=/",
        f"x-api-key: {SECRET}",
        f"ServerArgs(model_path='m', api_key='{SECRET}', port=1)",
        json.dumps({"model": "m", "access_key": SECRET}),
        json.dumps({"config": json.dumps({"secret": SECRET})}),
        json.dumps({"credentials": {"user": "u", "value": SECRET}, "x": 1}),
        json.dumps({"tokens": ["a", SECRET], "x": 1}),
        json.dumps({"config": json.dumps({"keys": [{"x": ["]", SECRET]}]})}),
        json.dumps({"secret": f'with "quotes" {SECRET}'}),
        f"options are {json.dumps({'key': [SECRET]})}, as asked",
        f"ServerArgs(tokens=['a', '{SECRET}'], credentials={{'u': '{SECRET}'}}, port=1)",
        f'{{\\"tokens\\": [\\"a]\\", \\"{SECRET}\\"',
        f"HF_TOKEN={SECRET} python -m sglang.launch_server",
        "got sk-abcdefghijklmnopqrstuv from the user".replace(
            "sk-abcdefghijklmnopqrstuv", f"sk-{SECRET[4:]}xxxxxxxxxxxx"
        ),
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}",
    ],
)
def test_secrets_in_free_text(text: str) -> None:
    out = redact_text(text)
    assert SECRET not in out
    assert SECRET[4:] not in out
    assert MARKER in out
    assert SECRET[4:] not in str(redact_argv(["curl", text]))
    assert SECRET[4:] not in str(redact_mapping({"note": text, "lines": [text]}))


@pytest.mark.parametrize(
    "text",
    [
        "[2026-01-29 13:12:36 PP1 TP0] Prefill batch. #new-seq: 1, #new-token: 20, #cached-token: 0, token usage: 0.01, #running-req: 2",
        "Decode batch. #running-req: 8, #token: 1234, token usage: 0.03, cuda graph: False, gen throughput (token/s): 24.70",
        "max_total_num_tokens=8192, chunked_prefill_size=2048, max_prefill_tokens=16384, tokenizer_path='m', api_key=None",
        "https://host:30000/v1?model=x",
        "Disable cuda graph because --disable-cuda-graph is set",
        '--cuda-graph-config {"decode":  {"backend": "disabled", "bs": [1, 2.50]}} [2026-01-29] \\u00fc',
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_settings_stay_readable() -> None:
    settings: dict[str, object] = {
        "model_path": "m", "tokenizer_path": "m", "tokenizer_worker_num": 2, "max_total_tokens": 8192, "skip_tokenizer_init": False,
        "generation_tokens_buckets": ["2"], "api_key": None, "enable_ssl_refresh": False, "chunked_prefill_size": -1,
        "internal_states": [{"token_capacity": 8192, "decode_cuda_graph_bs": [1, 2], "last_gen_throughput": 1.5}],
    }  # fmt: skip
    assert redact_mapping(settings) == settings
    secret = redact_mapping(
        {
            "api_key": SECRET,
            "admin_api_key": 123456,
            "ssl_certfile": "/etc/x",
            "prompt": "hello",
            "nested": {"hf_token": SECRET},
        }
    )
    assert {secret[name] for name in ("api_key", "admin_api_key", "ssl_certfile", "prompt")} == {MARKER}
    assert secret["nested"] == {"hf_token": MARKER}
    argv = (
        "sglang",
        "serve",
        "--tokenizer-path",
        "m",
        "--max-total-tokens",
        "8192",
        "--skip-tokenizer-init",
        "--enable-ssl-refresh",
        "--tp",
        "2",
    )
    assert redact_argv(argv) == argv


@given(st.text(max_size=200))
def test_any_text_can_be_redacted_twice(text: str) -> None:
    once = redact_text(text)
    assert redact_text(once) == once or MARKER in once
    redact_argv(text.split(" "))


@pytest.mark.parametrize(
    "piece",
    [
        "http://a:b@c/",
        "a:b",
        "--flag=",
        "key: ",
        "token=1,",
        "'a':",
        "sk-",
        "Bearer ",
        "a=b&",
        "authorization: ",
        '{"a":',
        "[1,",
        'key=["a",',
        "[\\\\",
    ],
)
def test_a_long_text_takes_no_square_of_its_length(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends that are looked for, added up, stay within a few times the text: counted, not timed."""
    looked = 0

    class Tail:
        def __init__(self, inner: re.Pattern[str]) -> None:
            self.inner = inner

        def match(self, text: str, at: int) -> re.Match[str] | None:
            nonlocal looked
            found = self.inner.match(text, at)
            looked += 0 if found is None else found.end() - found.start()
            return found

    for name in ("_FLAG_VALUE", "_PAIR_VALUE"):
        monkeypatch.setattr(redact, name, Tail(getattr(redact, name)))
    text = piece * 3000
    redact_text(text)
    assert looked <= 4 * len(text)
