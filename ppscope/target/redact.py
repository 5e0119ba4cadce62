"""The one place where secrets are taken out of what leaves the process table: command lines, environments, settings, text.

Recordings and snapshots are posted in public, so this errs towards removing too much.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ppscope.target.commands import parse_python

MARKER = "«redacted»"

_TRIGGER = re.compile(
    r"key|token|secret|passw|passphrase|pwd|credential|bearer|cookie|ssl|cert|auth(?!or(?!i))|signature|^sig$"
)
_TOKENIZER = re.compile(r"(?:de)?tokeniz(?:er|ers|ation|e)")
_TOKEN_COUNT = re.compile(
    r"tokens|token-(?:ids?|usage|capacity|count|num|ratio|map|bytes|len|length|latency|budget)|#|(?:new|cached)-token$"
)
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_HARMLESS = frozenset(
    {
        "collect-tokens-histogram",
        "enable-ssl-refresh",
        "generation-tokens-buckets",
        "piecewise-cuda-graph-tokens",
        "prompt-tokens-buckets",
        "speculative-token-map",
    }
)
"""SGLang's own options (0.5.6 to 0.5.23) that look like secrets and are none."""
_ABBREVIATED = ("api-key", "admin-api-key", "hf-token", "ssl-keyfile-password", "watermark-key")
"""argparse accepts any unique beginning of an option."""
_PRIVATE = frozenset(
    {
        "prompt",
        "prompts",
        "messages",
        "input-ids",
        "origin-input-ids",
        "input-text",
        "output-text",
        "input-texts",
        "question",
    }
)
"""What users of a server say to it and hear from it, as these keys and as options of somebody's own program."""

_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk|pk|rk|nvapi|glpat|xox[abeoprs])-[\w-]{12,}"
    r"|\b(?:hf|gh[opusr]|github_pat|npm|dckr_pat)_\w{12,}"
    r"|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?",
    re.DOTALL,
)
_USERINFO = re.compile(r"(\b[a-zA-Z][a-zA-Z0-9+.-]{0,30}://)[^/\s?#\"'<>]*@")
_SCHEME_WORD = re.compile(r"(\b(?:bearer|basic)\s+)(?![\"'])[^\s\"',;]+", re.IGNORECASE)
_HEADER = re.compile(r"((?:proxy-)?authorization\s*:\s*)[^\"'\r\n]+", re.IGNORECASE)
_FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z][\w.-]*)(\s*=\s*|\s+)")
_QUOTED = r"(\\*)(?:\"(?:[^\"\\]|\1\\+\"|\\+(?![\"\\]))*\\*\"?|'(?:[^'\\]|\1\\+'|\\+(?!['\\]))*\\*'?)"
"""Up to a quote with no more backslashes in front than the first had: those with more are part of the text."""
_FLAG_VALUE = re.compile(_QUOTED + r"|\S+")
_PAIR = re.compile(r"(?<![\w.-])(#?[\w.-]+)((?:\\*[\"'])?\s*[:=]\s*)")
_PAIR_VALUE = re.compile(_QUOTED + r"|[^\s,;&|)}\]]+")
_OPENS, _CLOSES = tuple("[{("), tuple("]})")
_NESTING = re.compile(r"\\+(?![\"'\\])|" + _QUOTED + r"|[\[{(]|[\]})]")
_JSON = json.JSONDecoder()
_JSON_OPENS = re.compile(r"\{\s*[\"}]|\[\s*[\[{\]\"\-\dtfnNI]")
_JOINED_WORD = re.compile(r"(?=\S)(--[\w.-]+=)?([\[{])?\S*")
_NOTHING = frozenset({"None", "null", "True", "False", "true", "false", "", MARKER})


def normal_name(name: str) -> str:
    """An option, variable or key in one spelling: lower case, dashes, no leading dashes."""
    return name.lstrip("-").replace("_", "-").lower()


def is_sensitive(name: str, value: object = None) -> bool:
    """Whether what stands under this name must not leave: anything like a key, token, secret, password or certificate.

    Counts of tokens are kept: a number under a name such as `max-total-tokens`.
    """
    name = normal_name(name)
    if name in _HARMLESS:
        return False
    if not _TRIGGER.search(_TOKENIZER.sub("", name)):
        return False
    if _TOKEN_COUNT.search(name) and not _TRIGGER.search(name.replace("token", "")):
        return not (isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value)))
    return True


def is_sensitive_flag(flag: str, value: str | None = None) -> bool:
    """The same for a command line option, of which argparse accepts abbreviations."""
    name = normal_name(flag)
    return is_sensitive(name, value) or (len(name) > 1 and any(full.startswith(name) for full in _ABBREVIATED))


def is_private(name: str) -> bool:
    """Whether what stands under this name is what somebody said to the server, or heard from it."""
    name = normal_name(name)
    return name in _PRIVATE or name.endswith(("-prompt", "-prompts"))


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line in which every value behind a sensitive option, and every secret inside other words, is the marker.

    So is what somebody says to the server: all words behind `--prompt` and its like, and the text of a program behind `-c`.
    """
    argv = _without_code(argv)
    out: list[str] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        name, equals, value = word.partition("=")
        if word.startswith("-") and not any(char.isspace() for char in name):
            if equals:
                hidden = is_private(name) or is_sensitive_flag(name, value)
                out.append(f"{name}={MARKER}" if hidden else f"{name}={redact_text(value)}")
                continue
            out.append(word if _is_plain_flag(word) else redact_text(word))
            following = argv[index] if index < len(argv) else None
            private = is_private(word) or (word == "-c" and all(given.startswith("-") for given in argv[1:index]))
            if following is None or not (private or is_sensitive_flag(word, following)):
                continue
            out.append(MARKER)
            index += 1
            several = private or normal_name(word).endswith("s")
            while several and word != "-c" and index < len(argv) and not argv[index].startswith("--"):
                out.append(MARKER)
                index += 1
        elif equals and re.fullmatch(r"[A-Za-z_]\w*", name) and is_sensitive(name, value):
            out.append(f"{name}={MARKER}")
        else:
            out.append(redact_text(word))
    return tuple(out)


def _without_code(argv: Sequence[str]) -> Sequence[str]:
    """A Python command line with the marker for the text behind `-c`, which may stand behind other options, letters and in one word."""
    command = parse_python(argv)
    if command is None or not command.code:
        return argv
    at = len(argv) - len(command.arguments) - 1
    return [*argv[:at], argv[at].removesuffix(command.code) + MARKER, *argv[at + 1 :]]


def _is_plain_flag(word: str) -> bool:
    return re.fullmatch(r"--?[A-Za-z][\w.-]{0,63}", word) is not None and not _SHAPES.search(word)


def redact_joined(text: str) -> list[str]:
    """The words of a command line that somebody put together without quotes.

    Where a value ends cannot be told: behind a sensitive option everything up to the next option is the marker.
    """
    out: list[str] = []
    hidden = False
    words = _joined_words(redact_text(text))
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            hidden = is_private(name) or is_sensitive_flag(name, value if equals else following)
            out.append(f"{name}={MARKER}" if hidden and equals else word)
            if hidden and not equals and following and not following.startswith("--"):
                out.append(MARKER)
        elif not hidden:
            out.append(word)
    return out


def _joined_words(text: str) -> list[str]:
    """Words between blanks; a JSON value of an option is one word."""
    words: list[str] = []
    at = 0
    while (found := _JOINED_WORD.search(text, at)) is not None:
        at = found.end()
        if found[2] and (found[1] or (words and words[-1].startswith("--"))):
            with suppress(ValueError, RecursionError):
                at = max(_JSON.raw_decode(text, found.start(2))[1], at)
        words.append(text[found.start() : at])
    return words


def redact_text(text: str) -> str:
    """Free text without URL passwords, sensitive options, `name: value` pairs, bearer tokens and well-known key shapes."""
    text = _redact_json(text)
    text = _SHAPES.sub(MARKER, text)
    text = _USERINFO.sub(rf"\1{MARKER}@", text)
    text = _HEADER.sub(rf"\1{MARKER}", text)
    text = _SCHEME_WORD.sub(rf"\1{MARKER}", text)
    text = _redact_named(text, _FLAG, _FLAG_VALUE, is_sensitive_flag)
    return _redact_named(text, _PAIR, _PAIR_VALUE, is_sensitive)


def _redact_json(text: str) -> str:
    """Replace what is secret in the JSON objects and lists of a text; the others stay letter by letter."""
    out: list[str] = []
    done = end = spent = 0
    while (found := _JSON_OPENS.search(text, end)) is not None and spent <= 8 * len(text):
        at = found.start()
        try:
            value, end = _JSON.raw_decode(text, at)
            redacted = redact_value(value)
        except (ValueError, RecursionError) as error:
            # It may have read to the end, and json looks for line breaks from the beginning on.
            spent += getattr(error, "pos", len(text)) - at + len(text) // 64
            end = at + 1
        else:
            if redacted != value:
                said = json.dumps(redacted, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
                out += [text[done:at], said]
                done = end
    return "".join([*out, text[done:]])


def _closed(text: str, at: int) -> int:
    """Where the bracket that opens at `at` closes; the end of the text when it does not."""
    depth = 0
    for found in _NESTING.finditer(text, at):
        depth += 1 if found[0] in _OPENS else -1 if found[0] in _CLOSES else 0
        if depth == 0:
            return found.end()
    return len(text)


def _redact_named(
    text: str, head: re.Pattern[str], tail: re.Pattern[str], sensitive: Callable[[str, str | None], bool]
) -> str:
    """Replace the value behind every sensitive name. What stands behind any other name is searched for names again."""
    out: list[str] = []
    done = 0
    at = 0
    while (name := head.search(text, at)) is not None:
        if not sensitive(name[1], None):
            # Not with any value either: looking for where each of them ends would take the square of a long text.
            at = name.end(1)
            continue
        at = name.end()
        value = tail.match(text, at)
        if value is None:
            continue
        bare = value[0].strip("\\\"'")
        if bare in _NOTHING or not sensitive(name[1], bare):
            at = name.end(1)
            continue
        quote = re.match(r"\\*[\"']", value[0])
        mark = f"{quote[0]}{MARKER}{quote[0]}" if quote else MARKER
        out += [text[done : name.end()], mark]
        done = at = _closed(text, at) if value[0].startswith(_OPENS) else value.end()
    return "".join([*out, text[done:]])


def redact_value(value: object) -> object:
    """The same for any JSON-like value; what is neither text, number, mapping nor sequence becomes redacted text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return redact_mapping(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        if any(isinstance(item, str) and item.startswith("-") for item in value) and all(
            isinstance(item, str) for item in value
        ):
            return list(redact_argv([str(item) for item in value]))
        return [redact_value(item) for item in value]
    return redact_text(repr(value))


def redact_mapping(mapping: Mapping[str, object]) -> dict[str, object]:
    """Settings or an environment, nested as they come, with the value under every sensitive name replaced by the marker.

    None, booleans and empty values stay: that no key is set is no secret.
    """
    out: dict[str, object] = {}
    for raw_name, value in mapping.items():
        name = str(raw_name)
        empty = value is None or isinstance(value, bool) or (isinstance(value, str | list | tuple | dict) and not value)
        if not empty and (is_sensitive(name, value) or is_private(name)):
            out[name] = MARKER
        else:
            out[name] = redact_value(value)
    return out
