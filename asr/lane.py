"""The state of rows that are decoded together: their keys and values, each row in a slot of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from asr.kv_cache import KvCache
from asr.model import MASKED, Dims
from asr.slots import Slots

WIDTH_MULTIPLE = 64
"""Lanes are as wide as a multiple of this, so that few arrivals make one wider."""
NARROWER = 0.75
"""A lane becomes narrower where this much of its width suffices: that costs a copy of all its rows."""

RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Encoded:
    """A batch that the encoder has seen.

    cross: cross-attention keys (rows, heads, head_dim, positions) and values (rows, heads, positions, head_dim) by
    input name; bias: (rows, positions), added to their attention scores.
    """

    cross: dict[str, Tensor]
    bias: Tensor

    @property
    def positions(self) -> int:
        return self.bias.shape[1]


class Lane(Generic[RowT]):
    """Rows of at most so many encoder positions. A row's state is written once, and stays where it is until it leaves
    or has to take the place of one that left.
    """

    def __init__(self, dims: Dims, positions: int, device: torch.device, dtype: torch.dtype) -> None:
        self.positions = positions
        self.rows: list[RowT] = []
        self._widths: list[int] = []
        self._cache = KvCache(dims, 0, device, dtype)
        heads, head_dim = dims.n_text_head, dims.head_dim
        shapes = {"key": ((0, heads, head_dim, 0), 3), "value": ((0, heads, 0, head_dim), 2)}
        self._cross = {
            f"cross_{part}_{layer}": Slots(shape, row_axis=0, length_axis=axis, device=device, dtype=dtype)
            for layer in range(dims.n_text_layer)
            for part, (shape, axis) in shapes.items()
        }
        self._cross["cross_bias"] = Slots((0, 0), row_axis=0, length_axis=1, device=device, dtype=dtype, filling=MASKED)
        self._views: dict[str, Tensor] = {}

    @property
    def width(self) -> int:
        """Encoder positions that every row has, those that are masked included."""
        return self._cross["cross_bias"].length

    def join(self, rows: Sequence[RowT], encoded: Encoded, cache: KvCache) -> None:
        """Add rows that were encoded together. cache: what they have read so far.

        Raises:
            torch.OutOfMemoryError: the device has no room for them; none has joined.
        """
        try:
            if encoded.positions > self.width:
                self._resize(self._wide_enough(encoded.positions))
            for name, values in {**encoded.cross, "cross_bias": encoded.bias}.items():
                self._cross[name].extend(values)
            self._cache.extend(cache)
        except torch.OutOfMemoryError:
            self._undo_join()
            raise
        self.rows += rows
        self._widths += [encoded.positions] * len(rows)
        self._views = {}

    def leave(self, row: RowT) -> None:
        """Take a row out; the last one takes its place."""
        index = self.rows.index(row)
        self.rows[index], self._widths[index] = self.rows[-1], self._widths[-1]
        del self.rows[-1], self._widths[-1]
        self._views = {}
        for slots in self._cross.values():
            slots.remove(index)
        self._cache.remove(index)
        needed = self._wide_enough(max(self._widths, default=0))
        if needed <= NARROWER * self.width:
            self._resize(needed)

    def inputs(self, rows: slice = slice(None)) -> dict[str, Tensor]:
        """What the decoder graph is given of these rows beside the tokens. The same tensors until a row comes or goes,
        but for those of self-attention, which change with every step.
        """
        if not self._views:
            self._views = {name: slots.tensor for name, slots in self._cross.items()}
        cross = self._views if rows == slice(None) else {name: value[rows] for name, value in self._views.items()}
        return {"past_lengths": self._cache.lengths[rows], **self._cache.tensors(rows), **cross}

    def append(self, new_kv: Tensor) -> None:
        """Add a step of every row, (layers, 2, rows, heads, 1, head_dim)."""
        self._cache.append(new_kv, torch.ones_like(self._cache.lengths))

    def reserve(self, rows: int, tokens: int) -> None:
        """Have the memory for so many rows of the longest kind from now on. The lane must be empty."""
        self._cache.reserve(rows, tokens)
        for slots in self._cross.values():
            slots.reshape(rows, self.positions)
            slots.reshape(rows, 0)

    def _undo_join(self) -> None:
        """Have every tensor hold the rows that are known, all in one width."""
        for slots in self._cross.values():
            slots.rows = len(self.rows)
        self._cache.cut(len(self.rows))
        self._resize(self.width)

    def _resize(self, width: int) -> None:
        for slots in self._cross.values():
            slots.resize(width)

    def _wide_enough(self, positions: int) -> int:
        return min(-(-positions // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, self.positions)
