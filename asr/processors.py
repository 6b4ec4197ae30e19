"""What of this machine a process may use."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0))
