"""Stand-ins for the handle to a deployment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any


class Call:
    """A call that was made: gives what `awaitable` gives, and keeps whether it was cancelled."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._awaitable.__await__()

    def cancel(self) -> None:
        self.cancelled = True


class Method:
    """A method of a deployment handle: `.remote(…)` makes a call of `function`."""

    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self._function = function
        self.calls: list[Call] = []

    def remote(self, *arguments: Any) -> Call:
        call = Call(self._function(*arguments))
        self.calls.append(call)
        return call
