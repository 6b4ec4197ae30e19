"""Self-attention keys and values of the rows being decoded."""

from __future__ import annotations

import torch
from torch import Tensor

from asr.model import Dims

BLOCK = 64
"""Capacity grows by this many tokens, so that a short utterance does not pay for the longest possible one."""


class KvCache:
    """Keys and values of a batch, where every row has its own length.

    storage: (layers, 2, batch, heads, capacity, head_dim), so that each layer's keys and each layer's values
    are one contiguous tensor that a graph can read in place. What lies beyond a row's length is ignored by the graph's
    mask.
    """

    def __init__(self, dims: Dims, batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)
        self._storage = torch.zeros(
            (dims.n_text_layer, 2, batch, dims.n_text_head, BLOCK, dims.head_dim), device=device, dtype=dtype
        )

    @property
    def capacity(self) -> int:
        return self._storage.shape[4]

    def tensors(self) -> dict[str, Tensor]:
        """Name → (batch, heads, capacity, head_dim), as the decoder graph's inputs are called."""
        return {
            f"self_{part}_{layer}": self._storage[layer, index]
            for layer in range(self._storage.shape[0])
            for index, part in enumerate(("key", "value"))
        }

    def append(self, new_kv: Tensor, counts: Tensor) -> None:
        """Add each row's first `counts` steps of new_kv, (layers, 2, batch, heads, steps, head_dim)."""
        steps = new_kv.shape[4]
        self._reserve(int(self.lengths.max()) + steps)
        rows = torch.arange(len(self.lengths), device=self.lengths.device)[:, None]
        positions = self.lengths[:, None] + torch.arange(steps, device=self.lengths.device)
        # All steps are written; those beyond a row's count stay beyond its length, and the next append covers them.
        self._storage[:, :, rows, :, positions] = new_kv.permute(2, 4, 0, 1, 3, 5)
        self.lengths = self.lengths + counts

    def keep(self, rows: Tensor) -> None:
        """Drop every row but these, (rows,) int64."""
        self.lengths = self.lengths[rows]
        self._storage = self._storage[:, :, rows]

    def _reserve(self, capacity: int) -> None:
        if capacity > self.capacity:
            missing = -(-capacity // BLOCK) * BLOCK - self.capacity
            self._storage = torch.nn.functional.pad(self._storage, (0, 0, 0, missing))
