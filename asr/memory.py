"""How much device memory a batch takes, so that one that cannot fit is split before it is tried."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from asr.errors import OutOfMemoryError
from asr.kv_cache import BLOCK, whole_blocks
from asr.model import Dims

FEED_FORWARD = 2 * 4 + 3
"""Values that a block holds for each of its state's: four times as wide before and after the activation, and others."""
HEADROOM = 1.2
"""Allocators round up and fragment: a batch is admitted if so many times what it needs is free."""


def batch_bytes(dims: Dims, dtype: torch.dtype, *, rows: int, positions: int) -> int:
    """Peak memory of a batch until its rows have joined those in flight, beside the weights and what is reserved for
    rows in flight: what the encoder makes, and the larger of its own largest moment and that of reading the prompts,
    which may be as long as they get.
    """
    prompt = longest_prompt(dims)
    cross = 2 * dims.n_text_layer * dims.n_text_state * positions
    encoding = positions * max(2 * dims.n_audio_head * positions, FEED_FORWARD * dims.n_audio_state)
    reading = prompt * max(2 * dims.n_text_head * max(positions, BLOCK + prompt), FEED_FORWARD * dims.n_text_state)
    cache = 2 * 2 * dims.n_text_layer * dims.n_text_state * whole_blocks(prompt)  # beside what goes into it
    return rows * (cross + max(encoding, cache + reading)) * dtype.itemsize


def longest_prompt(dims: Dims) -> int:
    """Tokens that are read before the start of the transcript."""
    return dims.n_text_ctx // 2


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one CUDA device."""

    device: torch.device

    def free_bytes(self) -> int:
        """What PyTorch could still get, or has and does not use."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)

    def admit(self, needed_bytes: int) -> None:
        """
        Raises:
            OutOfMemoryError: a batch that needs so much does not fit.
        """
        free = self.free_bytes()
        if needed_bytes * HEADROOM > free:
            raise OutOfMemoryError(f"a batch needs about {needed_bytes >> 20} MiB, of which {free >> 20} MiB are free")
