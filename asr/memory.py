"""How much device memory a batch takes, so that one that cannot fit is split before it is tried."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from asr.errors import OutOfMemoryError
from asr.model import Dims

HEADROOM = 1.2
"""Allocators round up and fragment: a batch is admitted if so many times what it needs is free."""


def batch_bytes(dims: Dims, dtype: torch.dtype, *, rows: int, positions: int) -> int:
    """Peak memory of a batch beside the weights: what lives through it, and the largest moment of the encoder."""
    cross = 2 * dims.n_text_layer * dims.n_text_state * positions
    cache = 2 * 2 * dims.n_text_layer * dims.n_text_state * dims.n_text_ctx  # twice while it grows
    logits = 3 * dims.n_vocab * torch.float32.itemsize // dtype.itemsize
    scores = 2 * dims.n_audio_head * positions**2
    feed_forward = (2 * 4 + 3) * dims.n_audio_state * positions
    return rows * (cross + cache + logits + max(scores, feed_forward)) * dtype.itemsize


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
