"""Self-attention keys and values of rows that are decoded together."""

from __future__ import annotations

import torch
from torch import Tensor

from asr.model import Dims
from asr.slots import Slots

BLOCK = 64
"""Capacity grows by this many tokens, so that a short utterance does not pay for the longest possible one."""


class KvCache:
    """Keys and values of rows, where every row has its own length.

    One tensor, (layers, 2, rows, heads, capacity, head_dim), of which each layer's keys and each layer's values are one
    contiguous part that a graph can read in place. What lies beyond a row's length is ignored by the graph's mask.
    """

    def __init__(self, dims: Dims, rows: int, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """rows: that are there from the beginning, with nothing in them."""
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slots = Slots(
            (dims.n_text_layer, 2, rows, dims.n_text_head, BLOCK, dims.head_dim),
            row_axis=2,
            length_axis=4,
            device=device,
            dtype=dtype,
        )

    @property
    def capacity(self) -> int:
        return self._slots.length

    def tensors(self, rows: slice = slice(None)) -> dict[str, Tensor]:
        """Name → (rows, heads, capacity, head_dim), as the decoder graph's inputs are called."""
        storage = self._slots.tensor
        return {
            f"self_{part}_{layer}": storage[layer, index, rows]
            for layer in range(storage.shape[0])
            for index, part in enumerate(("key", "value"))
        }

    def append(self, new_kv: Tensor, counts: Tensor) -> None:
        """Add each row's first `counts` steps of new_kv, (layers, 2, rows, heads, steps, head_dim)."""
        steps = new_kv.shape[4]
        self._fit(int(self.lengths.max()) + steps)
        rows = torch.arange(len(self.lengths), device=self.lengths.device)[:, None]
        positions = self.lengths[:, None] + torch.arange(steps, device=self.lengths.device)
        # All steps are written; those beyond a row's count stay beyond its length, and the next append covers them.
        self._slots.tensor[:, :, rows, :, positions] = new_kv.permute(2, 4, 0, 1, 3, 5)
        self.lengths = self.lengths + counts

    def extend(self, other: KvCache) -> None:
        """Add the rows of another cache."""
        self._fit(other.capacity)
        self._slots.extend(other._slots.tensor)
        self.lengths = torch.cat((self.lengths, other.lengths))

    def remove(self, row: int) -> None:
        """Take a row out; the last one takes its place."""
        self._slots.remove(row)
        self.lengths[row] = self.lengths[-1]
        self.lengths = self.lengths[:-1]
        needed = whole_blocks(int(self.lengths.max()) + 1 if len(self.lengths) else 1)
        if 2 * needed <= self.capacity:
            self._slots.resize(needed)

    def cut(self, rows: int) -> None:
        """Take out every row but the first ones."""
        self._slots.rows = rows
        self.lengths = self.lengths[:rows]

    def reserve(self, rows: int, capacity: int) -> None:
        """Have the memory for so many rows of so many tokens from now on."""
        length = self.capacity
        self._slots.reshape(rows, capacity)
        self._slots.reshape(rows, length)

    def _fit(self, capacity: int) -> None:
        if capacity > self.capacity:
            self._slots.resize(whole_blocks(capacity))


def whole_blocks(tokens: int) -> int:
    """The capacity that holds so many."""
    return -(-tokens // BLOCK) * BLOCK
