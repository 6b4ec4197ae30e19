"""A graph that several threads may run at a time, on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from torch import Tensor

from asr.session import Session

RUNS = 2
"""Runs that share the processors. The threads of a run wait for each other at every product, so two runs with half of
them each are done sooner than one after the other with all."""


class SideBySide:
    """Runs by themselves have all threads, runs beside another half of them. What they make is the same, bit for bit:
    threads share rows and columns of a product, never the terms of a sum.
    """

    def __init__(self, alone: Session, beside: Session) -> None:
        """Of the same graph; beside: which `RUNS` threads may run at a time."""
        self.device, self.dtype = alone.device, alone.dtype
        self._alone, self._beside = alone, beside
        self._lock = threading.Lock()
        self._is_taken = False

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with self._lock:
            is_alone, self._is_taken = not self._is_taken, True
        if not is_alone:
            return self._beside.run(inputs)
        try:
            return self._alone.run(inputs)
        finally:
            self._is_taken = False
