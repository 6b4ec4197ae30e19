"""Rows in their slots keep their values, whoever comes and goes beside them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asr.slots import Slots
from tests.asr.live_bytes import LiveBytes

CPU = torch.device("cpu")
FILLING = -7.0
AXES = [(0, 1), (0, 2), (2, 3), (1, 3)]
"""Of the rows and of their length, in four dimensions."""


def empty(row_axis: int, length_axis: int, *, length: int = 0) -> Slots:
    shape = [2, 2, 3, 3]
    shape[row_axis], shape[length_axis] = 0, length
    return Slots(
        shape,
        row_axis=row_axis,
        length_axis=length_axis,
        device=CPU,
        dtype=torch.float32,
        filling=FILLING,
    )


def row(value: float, length: int, row_axis: int, length_axis: int) -> Tensor:
    """One row, every value of which is another: value and a fraction."""
    shape = [2, 2, 3, 3]
    shape[row_axis], shape[length_axis] = 1, length
    return value + torch.arange(torch.Size(shape).numel()).view(shape) / 1000


class Reference:
    """What a tensor of rows has to be, made anew each time."""

    def __init__(self, row_axis: int, length_axis: int) -> None:
        self.row_axis, self.length_axis = row_axis, length_axis
        self.rows: list[Tensor] = []

    def remove(self, index: int) -> None:
        self.rows[index] = self.rows[-1]
        del self.rows[-1]

    def tensor(self, length: int) -> Tensor:
        return torch.cat([self._fitted(row, length) for row in self.rows], dim=self.row_axis)

    def _fitted(self, row: Tensor, length: int) -> Tensor:
        cut = row.narrow(self.length_axis, 0, min(length, row.shape[self.length_axis]))
        shape = list(cut.shape)
        shape[self.length_axis] = length - shape[self.length_axis]
        return torch.cat((cut, torch.full(shape, FILLING)), dim=self.length_axis)


def assert_exact(slots: Slots, expected: Tensor) -> None:
    assert slots.rows == expected.shape[slots._row_axis]
    assert torch.equal(slots.tensor, expected)


@pytest.mark.parametrize(("row_axis", "length_axis"), AXES)
def test_rows_keep_their_values(row_axis: int, length_axis: int) -> None:
    """Whatever is done, again and again, in an order that chance decides."""
    generator = torch.Generator().manual_seed(0)
    slots, reference = empty(row_axis, length_axis), Reference(row_axis, length_axis)
    done = set()
    for turn in range(300):
        choice = int(torch.randint(4, (), generator=generator))
        length = int(torch.randint(1, 9, (), generator=generator))
        if choice == 0 or not reference.rows:
            done.add("extend")
            added = [row(10.0 * turn + place, length, row_axis, length_axis) for place in range(2)]
            slots.resize(max(length, slots.length))
            slots.extend(torch.cat(added, dim=row_axis))
            reference.rows += added
        elif choice == 1:
            done.add("remove")
            index = int(torch.randint(len(reference.rows), (), generator=generator))
            slots.remove(index)
            reference.remove(index)
        elif choice == 2:
            done.add("longer" if length > slots.length else "shorter")
            slots.resize(length)
            reference.rows = [reference._fitted(kept, length) for kept in reference.rows]
        else:
            done.add("reshape")
            slots.reshape(slots.rows + length, slots.length)
        if reference.rows:
            assert_exact(slots, reference.tensor(slots.length))
        else:
            assert slots.rows == slots.tensor.shape[row_axis] == 0
    assert done == {"extend", "remove", "longer", "shorter", "reshape"}


@pytest.mark.parametrize(("row_axis", "length_axis"), AXES)
def test_what_a_short_row_lacks_is_filled(row_axis: int, length_axis: int) -> None:
    """Also where a row was that knew no numbers, or was longer."""
    slots = empty(row_axis, length_axis, length=6)
    slots.extend(torch.full_like(row(0.0, 6, row_axis, length_axis), torch.nan))
    slots.extend(torch.full_like(row(0.0, 6, row_axis, length_axis), torch.nan))
    slots.remove(1)
    slots.remove(0)
    slots.extend(short := row(1.0, 4, row_axis, length_axis))

    assert torch.equal(slots.tensor.narrow(length_axis, 0, 4), short)
    assert (slots.tensor.narrow(length_axis, 4, 2) == FILLING).all()


def test_rows_that_leave_do_not_leak_through_a_change_of_length() -> None:
    """Other rows' memory lies where the longer ones come to be."""
    slots = empty(0, 1, length=2)
    slots.reshape(8, 8)
    slots.reshape(8, 2)
    slots.extend(torch.full((4, 2, 3, 3), torch.nan))
    slots.extend(kept := torch.full((1, 2, 3, 3), 5.0))
    for index in (0, 3, 2, 1):
        slots.remove(index)
    slots.resize(8)

    assert torch.equal(slots.tensor[:, :2], kept)
    assert (slots.tensor[:, 2:] == FILLING).all()


def test_a_row_longer_than_the_others_is_refused() -> None:
    slots = empty(0, 1, length=3)
    with pytest.raises(RuntimeError):
        slots.extend(torch.zeros(2, 4, 3, 3))


def test_rows_at_the_beginning_are_filled() -> None:
    slots = Slots((3, 2, 2), row_axis=1, length_axis=2, device=CPU, dtype=torch.float16, filling=FILLING)

    assert slots.rows == 2
    assert slots.tensor.dtype == torch.float16
    assert torch.equal(slots.tensor, torch.full((3, 2, 2), FILLING, dtype=torch.float16))


# --- memory


def address(slots: Slots) -> int:
    return slots._memory.data_ptr()


@pytest.mark.parametrize(("row_axis", "length_axis"), AXES)
def test_rows_are_read_in_place(row_axis: int, length_axis: int) -> None:
    """Of each index before the rows' axis, so that a graph is given a contiguous tensor without a copy."""
    slots = empty(row_axis, length_axis, length=4)
    slots.reshape(5, 4)
    slots.extend(torch.cat([row(value, 4, row_axis, length_axis) for value in (1.0, 2.0)], dim=row_axis))

    assert slots.tensor.data_ptr() == address(slots)
    parts = slots.tensor.flatten(0, row_axis - 1).unbind() if row_axis else [slots.tensor]
    assert all(part.is_contiguous() for part in parts)


@pytest.mark.parametrize(("row_axis", "length_axis"), AXES)
def test_memory_is_reserved_once(row_axis: int, length_axis: int) -> None:
    slots = empty(row_axis, length_axis)
    slots.reshape(4, 6)
    slots.reshape(4, 0)
    reserved = address(slots)
    for length in (2, 6, 3):
        slots.resize(length)
        slots.extend(row(1.0, length, row_axis, length_axis))
    slots.extend(row(1.0, 3, row_axis, length_axis))
    assert address(slots) == reserved

    slots.resize(6)
    assert address(slots) == reserved
    slots.extend(row(1.0, 6, row_axis, length_axis))
    assert address(slots) != reserved


def test_memory_doubles() -> None:
    """Rows that come one by one are not copied each time: room for one, then for two, four, eight, sixteen."""
    slots = empty(0, 1, length=2)
    addresses = set()
    for value in range(16):
        slots.extend(row(float(value), 2, 0, 1))
        addresses.add((address(slots), len(slots._memory)))

    assert len(addresses) == 5


def test_a_change_of_length_in_place_copies_one_part_at_a_time() -> None:
    """Rows of a cache are a large part of a device's memory, of which no second copy may be needed."""
    slots = Slots((6, 4, 5), row_axis=1, length_axis=2, device=CPU, dtype=torch.float32)
    slots.reshape(4, 10)
    slots.reshape(4, 5)
    with LiveBytes() as live:
        slots.resize(10)
        slots.resize(5)

    assert live.peak == 4 * 5 * slots.tensor.itemsize
