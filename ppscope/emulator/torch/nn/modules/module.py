"""A module that is called the way torch's are, so that the same two frames stand between layers."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Module(ABC):
    """Base of the emulated layers."""

    @abstractmethod
    def forward(self, start_ns: int, end_ns: int) -> None:
        """Spend the host time from `start_ns` to `end_ns` (CLOCK_MONOTONIC) launching."""

    def _call_impl(self, start_ns: int, end_ns: int) -> None:
        return self.forward(start_ns, end_ns)

    def _wrapped_call_impl(self, start_ns: int, end_ns: int) -> None:
        return self._call_impl(start_ns, end_ns)

    __call__ = _wrapped_call_impl
