"""The TensorRT that is installed: full TensorRT, or TensorRT for RTX, whose Python classes are the same.

Full TensorRT is what serves, and it builds plans for the GPU of its own machine. TensorRT for RTX builds for a GPU that
the machine need not have, which is how graphs are checked. Neither is imported before it is asked for.

TensorRT says that something failed with a None or a False, and why only to its logger. A process has one logger: while
any object of TensorRT lives, another one is ignored. So whoever calls TensorRT collects what is said meanwhile.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from asr.errors import ArtefactError

MODULES = {"tensorrt": "TensorRT", "tensorrt_rtx_bindings": "TensorRT for RTX"}
"""Module → product, the preferred one first."""
PACKAGES = "rayscribe[tensorrt] where there is a GPU, else tensorrt-rtx-cu12-bindings and tensorrt-rtx-cu12-libs"


@dataclass(frozen=True)
class Message:
    """severity: "WARNING", "ERROR" or "INTERNAL_ERROR"."""

    severity: str
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}"


class MessageLog:
    """What TensorRT says, for whoever is collecting; what nobody collects goes to Python's logging."""

    def __init__(self) -> None:
        self._collectors: dict[int, list[Message]] = {}

    @contextmanager
    def collect(self) -> Iterator[list[Message]]:
        """A list of everything said while the block runs, by any thread: TensorRT builds with threads of its own."""
        collected: list[Message] = []
        self._collectors[id(collected)] = collected
        try:
            yield collected
        finally:
            del self._collectors[id(collected)]

    def add(self, message: Message) -> None:
        collectors = tuple(self._collectors.values())
        for collected in collectors:
            collected.append(message)
        if not collectors:
            logging.getLogger(__name__).warning("%s", message)


@dataclass(frozen=True)
class TensorRTLibrary:
    """module: the Python bindings; logger: the process's one ILogger of theirs; messages: what it hears."""

    module: Any
    name: str
    version: str
    logger: Any
    messages: MessageLog

    def __str__(self) -> str:
        """What a plan depends on, such as "TensorRT 11.4.0"."""
        return f"{self.name} {self.version}"


@cache
def load_tensorrt() -> TensorRTLibrary:
    """Import TensorRT if there is one.

    Raises:
        ArtefactError: none is installed, or the one that is cannot be loaded.
    """
    for module_name, product in MODULES.items():
        try:
            module = importlib.import_module(module_name)
        except (ImportError, OSError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name == module_name:
                continue
            raise ArtefactError(product, f"is installed but cannot be loaded ({error})") from error
        messages = MessageLog()
        return TensorRTLibrary(module, product, module.__version__, _logger(module, messages), messages)
    raise ArtefactError("TensorRT", f"is not installed; install {PACKAGES}")


def _logger(module: Any, messages: MessageLog) -> Any:
    class Logger(module.ILogger):  # type: ignore[misc]  # a class of whichever module it is
        def log(self, severity: Any, msg: str) -> None:
            if severity <= module.ILogger.Severity.WARNING:  # the worse, the smaller
                messages.add(Message(severity.name, msg))

    return Logger()
