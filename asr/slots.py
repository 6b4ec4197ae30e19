"""A tensor of rows that come and go, kept so that a graph reads those that are there in place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


class Slots:
    """Rows one behind the other in memory of their own, along an axis that is as long as the longest needs.

    The rows that are there are always the first ones, so no step gathers them; one that leaves has its place taken by
    the last. Memory is only ever added: where the length changes, what there is is seen in another shape.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        row_axis: int,
        length_axis: int,
        device: torch.device,
        dtype: torch.dtype,
        filling: float = 0.0,
    ) -> None:
        """shape: at the beginning, the length's axis behind the rows'; filling: what shorter rows are filled up with,
        and all of those that are there at the beginning.
        """
        self.rows = shape[row_axis]
        self._shape = list(shape)
        self._row_axis = row_axis
        self._length_axis = length_axis
        self._filling = filling
        self._memory = torch.full((prod(shape),), filling, device=device, dtype=dtype)

    @property
    def length(self) -> int:
        return self._shape[self._length_axis]

    @property
    def tensor(self) -> Tensor:
        """The rows that are there, by reference."""
        storage = self._memory[: prod(self._shape)].view(self._shape)
        return storage.narrow(self._row_axis, 0, self.rows)

    def extend(self, values: Tensor) -> None:
        """Add rows of at most the present length."""
        first, count = self.rows, values.shape[self._row_axis]
        given = values.shape[self._length_axis]
        if first + count > self._shape[self._row_axis]:
            self.reshape(max(first + count, 2 * self._shape[self._row_axis]), self.length)
        self.rows += count
        added = self.tensor.narrow(self._row_axis, first, count)
        added.narrow(self._length_axis, 0, given).copy_(values)
        added.narrow(self._length_axis, given, self.length - given).fill_(self._filling)

    def remove(self, row: int) -> None:
        """Take a row out; the last one takes its place."""
        last = self.rows - 1
        if row != last:
            tensor = self.tensor
            tensor.select(self._row_axis, row).copy_(tensor.select(self._row_axis, last))
        self.rows = last

    def resize(self, length: int) -> None:
        """Make rows longer, or cut them off."""
        if length != self.length:
            self.reshape(self._shape[self._row_axis], length)

    def reshape(self, slots: int, length: int) -> None:
        """Make room for so many rows of this length. Costs a copy of the rows that are there, and beside new memory,
        where that is needed, holds two copies of no more than one part of them.
        """
        shape = list(self._shape)
        shape[self._row_axis], shape[self._length_axis] = slots, length
        memory = self._memory
        if prod(shape) > len(memory):
            memory = memory.new_zeros(prod(shape))  # finite, as whatever a mask hides has to be
        moves = list(zip(self._parts(self._memory, self._shape), self._parts(memory, shape), strict=True))
        if prod(shape) > prod(self._shape):  # so that no part is written over that has yet to move
            moves.reverse()
        axis, common = self._length_axis - self._row_axis, min(length, self.length)
        for old, new in moves:
            new.narrow(axis, 0, common).copy_(old.narrow(axis, 0, common).clone())
            new.narrow(axis, common, length - common).fill_(self._filling)
        self._memory, self._shape = memory, shape

    def _parts(self, memory: Tensor, shape: Sequence[int]) -> list[Tensor]:
        """The rows that are there, for each index into the axes before theirs: (rows, ...) each, by reference."""
        parts = memory[: prod(shape)].view(prod(shape[: self._row_axis]), *shape[self._row_axis :])
        return [part[: self.rows] for part in parts]
