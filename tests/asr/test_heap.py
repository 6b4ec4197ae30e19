"""Memory that is free again goes back to the system."""

from __future__ import annotations

import platform

import numpy as np
import psutil
import pytest

from asr.heap import give_back_free_memory

BLOCKS, BLOCK_BYTES = 2_000, 64 << 10
"""Small enough for the C library's heap, of which it keeps what is free."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of what other C libraries keep, nothing is known here")
def test_free_memory_goes_back() -> None:
    blocks = [np.ones(BLOCK_BYTES, np.uint8) for _ in range(BLOCKS)]
    last = blocks[-1]  # above all others, which keeps the heap from shrinking by itself
    del blocks
    before = psutil.Process().memory_info().rss
    give_back_free_memory()

    assert before - psutil.Process().memory_info().rss > 0.8 * BLOCKS * BLOCK_BYTES
    assert last.all()


def test_a_c_library_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())

    give_back_free_memory()
