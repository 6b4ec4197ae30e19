"""What the C library keeps of memory that is free again."""

from __future__ import annotations

import ctypes


def give_back_free_memory() -> None:
    """To the system, where the C library can (glibc: malloc_trim(3)). Takes some 50 ms where there is much of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
