"""Stack to phase: the table of `phases.toml`, read once, with a user's own rows on top."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from ppscope.views import PhaseStyle

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Frame = tuple[str, str, "int | None"]
"""(function, file, line) of one stack frame."""

BATCHES = ("mb", "next", "none")
KINDS = ("work", "wait", "idle", "other", "frozen")


class PhaseTableError(ValueError):
    """A phase table that cannot be used; the message is one line and names the row."""


@dataclass(frozen=True)
class Rule:
    """One row of the table: which frames it fits, and what they mean."""

    functions: tuple[str, ...]
    files: tuple[str, ...]
    under: tuple[str, ...]
    not_under: tuple[str, ...]
    phase: int
    batch: str
    needs_batch: bool
    over: bool
    versions: str = ""
    note: str = ""

    def fits(self, function: str, file: str) -> bool:
        """Whether the rule names this frame, its surroundings left out."""
        return _any(self.functions, function) and (not self.files or _in_files(self.files, file))


@dataclass(frozen=True)
class Meaning:
    """What a stack means: a phase index, whose micro-batch it belongs to, and whether only a loop turn with a batch gets there.

    `batch` is `mb` (the loop's mb_id), `next` (its next_mb_id) or `none`; `rule` is None where no rule fitted.
    """

    phase: int
    batch: str = "none"
    needs_batch: bool = False
    rule: Rule | None = None


class PhaseTable:
    """Phases with their styles, and the rules that read them off a stack."""

    def __init__(
        self,
        styles: Sequence[PhaseStyle],
        rules: Sequence[Rule],
        loops: Sequence[str],
        scheduler: Sequence[str],
        by_request: Sequence[str] = (),
    ) -> None:
        self.styles = tuple(styles)
        self.rules = tuple(rules)
        self.loops = tuple(loops)
        self.scheduler = tuple(scheduler)
        self._by_request = tuple(by_request)
        self.problem: str | None = None
        """Why the user's own table was left out; None when it was read or there is none."""
        self.by_name = {style.name: index for index, style in enumerate(self.styles)}
        self._candidates: dict[tuple[str, str], tuple[Rule, ...]] = {}

    @classmethod
    def load(cls, extra: Path | None = None) -> PhaseTable:
        """Read the table that ships with ppscope, and the user's rows before its own.

        `extra` defaults to `$XDG_CONFIG_HOME/ppscope/phases.toml`. A user's table that cannot be used is left out and named in
        `problem`.
        """
        own = tomllib.loads(files("ppscope.target").joinpath("phases.toml").read_text(encoding="utf-8"))
        path = extra if extra is not None else _user_table()
        try:
            more = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls.from_data(own)
        except (OSError, ValueError) as error:
            table = cls.from_data(own)
            table.problem = f"{path}: {str(error).splitlines()[0]}"
            return table
        try:
            return cls.from_data(own, more)
        except PhaseTableError as error:
            table = cls.from_data(own)
            table.problem = f"{path}: {error}"
            return table

    @classmethod
    def from_data(cls, *tables: Mapping[str, object]) -> PhaseTable:
        """Merge tables: phases of a later one replace or extend, its rules come first. Raises `PhaseTableError`."""
        styles: dict[str, PhaseStyle] = {}
        for table in tables:
            for row in _rows(table, "phase"):
                style = _style(row)
                styles[style.name] = style
        missing = {"idle", "starting", "other"} - set(styles)
        if missing:
            raise PhaseTableError(f"phase {', '.join(sorted(missing))} is missing")
        index = {name: number for number, name in enumerate(styles)}
        rules: list[Rule] = []
        for table in reversed(tables):
            rules += [_rule(row, index) for row in _rows(table, "rule")]
        loops = [pattern for table in tables for pattern in _strings(table, "loops")]
        scheduler = [pattern for table in tables for pattern in _strings(table, "scheduler")]
        by_request = [pattern for table in tables for pattern in _strings(table, "by_request")]
        return cls(list(styles.values()), rules, loops, scheduler, by_request)

    @cached_property
    def other(self) -> int:
        """Index of the phase of everything no rule names."""
        return self.by_name["other"]

    def classify(self, frames: Sequence[Frame]) -> int:
        """Phase index of a stack, outermost frame first."""
        return self.meaning(frames).phase

    def meaning(self, frames: Sequence[Frame]) -> Meaning:
        """Phase, micro-batch and rule of a stack, outermost frame first."""
        names = [_last(frame[0]) for frame in frames]
        if not any(_any(self.loops, name) for name in names):
            starting = any(_any(self.scheduler, name) for name in names)
            return Meaning(self.by_name["starting"] if starting else self.other)
        found = [self._rules_for(name, frame[1]) for name, frame in zip(names, frames, strict=True)]
        for position, rules in enumerate(found):
            for rule in rules:
                if rule.over and self._placed(rule, names, frames, position):
                    return Meaning(rule.phase, rule.batch, rule.needs_batch, rule)
        for position in range(len(frames) - 1, -1, -1):
            for rule in found[position]:
                if self._placed(rule, names, frames, position):
                    return Meaning(rule.phase, rule.batch, rule.needs_batch, rule)
        return Meaning(self.other)

    def by_request(self, frames: Sequence[Frame]) -> bool:
        """Whether a stack is in a loop over the requests of a micro-batch."""
        return any(_context(pattern, _last(name), file) for pattern in self._by_request for name, file, _ in frames)

    def _rules_for(self, name: str, file: str) -> tuple[Rule, ...]:
        key = (name, file)
        rules = self._candidates.get(key)
        if rules is None:
            if len(self._candidates) > 50_000:
                self._candidates.clear()
            rules = self._candidates[key] = tuple(rule for rule in self.rules if rule.fits(name, file))
        return rules

    @staticmethod
    def _placed(rule: Rule, names: Sequence[str], frames: Sequence[Frame], position: int) -> bool:
        def outside(patterns: tuple[str, ...]) -> bool:
            return any(_context(pattern, names[i], frames[i][1]) for pattern in patterns for i in range(position))

        return (not rule.under or outside(rule.under)) and not (rule.not_under and outside(rule.not_under))


def _user_table() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "ppscope" / "phases.toml"


def _last(function: str) -> str:
    # 3.11 and later report qualified names: `Scheduler.run_batch`, `f.<locals>.g`.
    return function.rpartition(".")[2]


def _any(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _in_files(patterns: Sequence[str], file: str) -> bool:
    path = file.replace("\\", "/")
    return any(fnmatchcase("/" + path, "*/" + pattern) for pattern in patterns)


def _context(pattern: str, name: str, file: str) -> bool:
    function, at, where = pattern.partition("@")
    return fnmatchcase(name, function) and (not at or _in_files((where,), file))


def _rows(table: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    rows = table.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PhaseTableError(f"`{key}` must be an array of tables")
    return rows


def _strings(row: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = row.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PhaseTableError(f"`{key}` must be an array of strings")
    return tuple(value)


def _text(row: Mapping[str, object], key: str, where: str, default: str | None = None) -> str:
    value = row.get(key, default)
    if not isinstance(value, str) or (default is None and not value):
        raise PhaseTableError(f"{where}: `{key}` must be a string")
    return value


def _flag(row: Mapping[str, object], key: str, where: str) -> bool:
    value = row.get(key, False)
    if not isinstance(value, bool):
        raise PhaseTableError(f"{where}: `{key}` must be true or false")
    return value


def _style(row: Mapping[str, object]) -> PhaseStyle:
    name = _text(row, "name", "phase")
    where = f"phase {name}"
    kind = _text(row, "kind", where)
    if kind not in KINDS:
        raise PhaseTableError(f"{where}: kind {kind!r} is none of {', '.join(KINDS)}")
    glyph, ascii_glyph = _text(row, "glyph", where), _text(row, "ascii", where)
    if len(glyph) != 1 or len(ascii_glyph) != 1 or not ascii_glyph.isascii() or not ascii_glyph.isprintable():
        raise PhaseTableError(f"{where}: `glyph` and `ascii` are one character each")
    return PhaseStyle(
        name=name,
        label=_text(row, "label", where),
        kind=kind,
        glyph=glyph,
        ascii=ascii_glyph,
        colour=_text(row, "colour", where),
        colour16=_text(row, "colour16", where),
    )


def _rule(row: Mapping[str, object], phases: Mapping[str, int]) -> Rule:
    functions = _strings(row, "functions")
    where = f"rule for {functions[0]}" if functions else "rule"
    if not functions:
        raise PhaseTableError("rule: `functions` is empty")
    phase = _text(row, "phase", where)
    if phase not in phases:
        raise PhaseTableError(f"{where}: no phase {phase!r}")
    batch = _text(row, "batch", where, "none")
    if batch not in BATCHES:
        raise PhaseTableError(f"{where}: batch {batch!r} is none of {', '.join(BATCHES)}")
    return Rule(
        functions=functions,
        files=_strings(row, "files"),
        under=_strings(row, "under"),
        not_under=_strings(row, "not_under"),
        phase=phases[phase],
        batch=batch,
        needs_batch=_flag(row, "needs_batch", where),
        over=_flag(row, "over", where),
        versions=_text(row, "versions", where, ""),
        note=_text(row, "note", where, ""),
    )
