"""Puts the wrappers in place: at once for what is imported already, and as soon as it is for the rest."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from . import layout, wrappers
from .recorder import Recorder
from .targets import MODULES, SCHEDULER_MODULE, TARGETS, Target
from .wrappers import Call

_MARK = "__ppscope_probe__"


class Hook:
    """The post-import hook of one process. `sys.meta_path` holds it first; it finds nothing itself, it waits for others to."""

    def __init__(self, shared: Recorder, targets: Sequence[Target] = TARGETS) -> None:
        self._recorder = shared
        self._targets = targets
        self._looking = False

    def install(self) -> None:
        """Wrap what is here, wait for the rest, and start afresh in forked children."""
        sys.meta_path.insert(0, self)
        os.register_at_fork(after_in_child=self._recorder.forked)
        if _loaded(SCHEDULER_MODULE):
            self._imported(SCHEDULER_MODULE)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Let the other finders find a module of ours, and have it wrapped once it has run."""
        if name not in MODULES or self._looking:
            return None
        self._looking = True
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    self._follow(spec, name)
                    return spec
        finally:
            self._looking = False
        return None

    def _follow(self, spec: ModuleSpec, name: str) -> None:
        loader = spec.loader
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            try:
                del loader.exec_module  # type: ignore[union-attr]
            except AttributeError:
                pass
            run(module)
            self._imported(name)

        try:
            loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        except AttributeError:  # a loader that takes no attributes: this module stays as it is
            return

    def _imported(self, name: str) -> None:
        try:
            scheduler = sys.modules.get(SCHEDULER_MODULE)
            if scheduler is None or (not _loaded(SCHEDULER_MODULE) and name != SCHEDULER_MODULE):
                return
            only = None if name == SCHEDULER_MODULE else name
            self.wrap_modules(sys.modules, only)
            self._recorder.told()
        except Exception as error:  # noqa: BLE001  the server goes on
            self._recorder.fail(error)

    def wrap_modules(self, modules: Mapping[str, ModuleType], only: str | None = None) -> None:
        """Wrap what the table names in these modules, or in one of them."""
        scheduler = getattr(modules.get(SCHEDULER_MODULE), "Scheduler", None)
        wrapped, missing = self._recorder.facts["wrapped"], self._recorder.facts["missing"]
        for target in self._targets:
            module = modules.get(target.module)
            if module is None or (only is not None and only != target.module):
                continue
            for owner in _owners(module, target.owner):
                if any(_has(owner, scheduler, name) for name in target.unless):
                    continue
                for name in target.names:
                    label = f"{owner.__name__.rpartition('.')[2]}.{name}"
                    try:
                        done = self._wrap(owner, name, target)
                    except Exception:  # noqa: BLE001  a method of C, say: the others are wrapped all the same
                        done = False
                    if done is not None and label not in (into := wrapped if done else missing):
                        into.append(label)

    def _wrap(self, owner: Any, name: str, target: Target) -> bool | None:
        """True: wrapped now. False: not there, or no plain function. None: wrapped before."""
        place = owner
        if isinstance(owner, type):
            # Where it is defined, so that whoever wraps the same method there later still takes part.
            place = next((part for part in owner.__mro__ if name in part.__dict__), None)
        original = vars(place).get(name) if place is not None else None
        if getattr(original, _MARK, False):
            return None
        if not isinstance(original, FunctionType):
            return False  # a wrapper would bind where it does not, or lack what hangs on it
        imported = isinstance(owner, ModuleType) and original.__module__ != owner.__name__
        wrapper = _wrapper(self._recorder, _as_at_home(original) if imported else original, target)
        functools.update_wrapper(wrapper, original)
        setattr(wrapper, _MARK, True)
        setattr(place, name, wrapper)
        return True


def _wrapper(shared: Recorder, original: Call, target: Target) -> Call:
    timed = wrappers.timed(shared, original, target.kind, target.floor_ns, following=target.how == "following")
    simple = {
        "begin": wrappers.beginning,
        "launch": wrappers.launching,
        "run": wrappers.running,
        "process": wrappers.processing,
        "replay": wrappers.replaying,
        "ask": wrappers.asking,
        "old_recv": wrappers.receiving,
    }
    if target.how in simple:
        return simple[target.how](shared, original)
    if target.how == "turn":
        return wrappers.turning(shared, original, layout.INTAKE)
    if target.how == "thread":
        return wrappers.on_loop_thread(shared, original, timed)
    return timed


def _as_at_home(original: FunctionType) -> Call:
    """What a module imported from another, as that one has it when it is called.

    SGLang's plugins replace a function at its home and in the modules that hold the same one (hook_registry.py of 0.5.11 and later);
    where a wrapper stands, they would not find it.
    """
    module, name = sys.modules.get(original.__module__), original.__name__
    home = {} if module is None else vars(module)
    if home.get(name) is not original:
        return original

    def latest(*args: Any, **kwargs: Any) -> Any:
        return home.get(name, original)(*args, **kwargs)

    return latest


def _owners(module: ModuleType, owner: str) -> Iterable[Any]:
    if not owner:
        return (module,)
    if owner == "*":
        return tuple(
            value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__
        )
    found = getattr(module, owner, None)
    return (found,) if isinstance(found, type) else ()


def _has(owner: Any, scheduler: type | None, name: str) -> bool:
    return hasattr(scheduler, name[1:]) if name.startswith("@") else hasattr(owner, name)


def _loaded(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)
