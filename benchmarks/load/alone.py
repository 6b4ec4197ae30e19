"""A process of one's own for what is measured without a service."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from benchmarks.load.processes import Meter, metered

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class OwnProcess:
    executor: ProcessPoolExecutor
    meter: Meter

    def run(self, function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """What the function returns or raises there; it can be found by name, and what goes in and out be pickled."""
        return self.executor.submit(function, *arguments, **named).result()


@contextmanager
def own_process() -> Iterator[OwnProcess]:
    """A new process that runs one function at a time, and lasts as long as the context."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        pid = executor.submit(os.getpid).result()
        with metered(pid) as meter:
            yield OwnProcess(executor, meter)
