"""What a process and all its descendants use: processor time and memory.

Memory is proportional (PSS): a page that several processes share counts once, a part for each. So what Ray's processes
have in common, its object store above all, is not counted many times.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psutil

PERIOD_S = 1.0
MEMORY_SHARE = 0.02
"""Of the time, at most, spent on reading memory: it takes the kernel long where much is mapped."""
VANISHED = (psutil.NoSuchProcess, psutil.ZombieProcess)


@dataclass(frozen=True)
class Usage:
    """cpu_s: processor seconds, of all processes together; peak_bytes: the most memory that they were seen to have."""

    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True)
class ProcessMemory:
    """In bytes. uss: pages of its own; pss: and its part of those that it shares; rss: and all of these."""

    pid: int
    name: str
    uss: int
    pss: int
    rss: int


def process_tree(pid: int) -> list[psutil.Process]:
    """The process and its descendants, itself first; nothing if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except VANISHED:
        return []


def memory_of(pid: int) -> list[ProcessMemory]:
    """Of the process and its descendants."""
    found = []
    for process in process_tree(pid):
        with contextlib.suppress(*VANISHED):  # it has ended meanwhile
            memory = process.memory_full_info()
            found.append(ProcessMemory(process.pid, _name(process), memory.uss, memory.pss, memory.rss))
    return found


def _name(process: psutil.Process) -> str:
    """What it calls itself, or the module or script that Python runs in it."""
    command: list[str] = process.cmdline() or [process.name()]
    first, *others = command
    if first.startswith("ray::"):
        return first.removeprefix("ray::").partition(".")[0]  # without the method that is running
    if "-m" in others[:3]:
        return others[others.index("-m") + 1]
    script = next((argument for argument in others if argument.endswith(".py")), first)
    return script.rpartition("/")[2]


class Meter:
    """Samples the processor time and the memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu_s: dict[psutil.Process, float] = {}  # also of those that have ended
        self._totals: list[tuple[float, float]] = []
        self._memory: list[tuple[float, int]] = []
        self._memory_due = 0.0
        self._lock = threading.Lock()

    def usage(self, start_s: float, end_s: float) -> Usage:
        """What was used between two times, the second of which has just passed."""
        with self._lock:
            self._sample_cpu()
            self._sample_memory()
            times, totals = np.array(self._totals).T
            spent = np.diff(np.interp([start_s, end_s], times, totals))
            return Usage(float(spent[0]), max(size for taken_s, size in self._memory if taken_s >= start_s))

    def sample(self) -> None:
        with self._lock:
            self._sample_cpu()
            if time.monotonic() >= self._memory_due:
                self._sample_memory()

    def _sample_cpu(self) -> None:
        for process in process_tree(self._pid):
            with contextlib.suppress(*VANISHED):
                times = process.cpu_times()
                self._cpu_s[process] = times.user + times.system
        self._totals.append((time.monotonic(), sum(self._cpu_s.values())))

    def _sample_memory(self) -> None:
        start_s = time.monotonic()
        size = sum(process.pss for process in memory_of(self._pid))
        now = time.monotonic()
        self._memory.append((now, size))
        self._memory_due = now + (now - start_s) / MEMORY_SHARE


@contextmanager
def metered(pid: int) -> Iterator[Meter]:
    """A meter that samples by itself for as long as the context lasts."""
    meter = Meter(pid)
    meter.sample()
    stopped = threading.Event()

    def sample() -> None:
        while not stopped.wait(PERIOD_S):
            meter.sample()

    thread = threading.Thread(target=sample, name="meter", daemon=True)
    thread.start()
    try:
        yield meter
    finally:
        stopped.set()
        thread.join()
