"""Rows of a lane have their keys, values and masks, whoever comes and goes beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from asr.kv_cache import BLOCK, KvCache
from asr.lane import WIDTH_MULTIPLE, Encoded, Lane
from asr.model import MASKED, decoder_input_names
from asr.slots import Slots
from tests.asr.odd_dims import ODD_DIMS

CPU = torch.device("cpu")
POSITIONS = 500
"""Of the lane: no multiple of what its width is rounded to."""
TOKENS = 3
"""That every row has read when it joins."""


def batch(*names: str, positions: int) -> tuple[Encoded, KvCache]:
    """What a batch is encoded to, each row in numbers of its own."""
    dims = ODD_DIMS
    heads, numbers = dims.n_text_head, torch.tensor([float(ord(name)) for name in names])
    shapes = {"key": (heads, dims.head_dim, positions), "value": (heads, positions, dims.head_dim)}
    cross = {
        f"cross_{part}_{layer}": numbers.view(-1, 1, 1, 1) + layer / 2 + torch.rand(len(names), *shape) / 4
        for layer in range(dims.n_text_layer)
        for part, shape in shapes.items()
    }
    cache = KvCache(dims, len(names), CPU)
    new_kv = torch.rand(dims.n_text_layer, 2, len(names), heads, TOKENS, dims.head_dim) + numbers.view(-1, 1, 1, 1)
    cache.append(new_kv, torch.full((len(names),), TOKENS))
    return Encoded(cross, torch.rand(len(names), positions) + numbers[:, None]), cache


class Filled:
    """A lane, and what each of its rows was given."""

    def __init__(self) -> None:
        self.lane: Lane[str] = Lane(ODD_DIMS, POSITIONS, CPU, torch.float32)
        self._given: dict[str, dict[str, Tensor]] = {}

    def join(self, *names: str, positions: int = 10) -> None:
        encoded, cache = batch(*names, positions=positions)
        inputs = {**encoded.cross, "cross_bias": encoded.bias, **cache.tensors(), "past_lengths": cache.lengths}
        for place, row in enumerate(names):
            self._given[row] = {name: value[place].clone() for name, value in inputs.items()}
        self.lane.join(names, encoded, cache)

    def assert_holds(self, *names: str) -> None:
        """These rows in this order, and what the graph is given of each."""
        assert self.lane.rows == list(names)
        inputs = self.lane.inputs()
        assert {*inputs, "tokens", "logit_positions"} == set(decoder_input_names(ODD_DIMS))
        for name, value in inputs.items():
            assert value.is_contiguous()
            assert value.isfinite().all()
            assert len(value) == len(names)
            assert not name.startswith("cross_") or self.lane.width in value.shape[1:]
            for row, actual in zip(names, value, strict=True):
                assert_padded(name, actual, self._given[row][name])


def assert_padded(name: str, actual: Tensor, given: Tensor) -> None:
    """What was given, and beyond it what has no effect."""
    if name == "past_lengths":
        assert torch.equal(actual, given)
    elif name.startswith("self_"):
        assert torch.equal(actual[:, :TOKENS], given[:, :TOKENS])
    else:
        axis = {"cross_key": 2, "cross_value": 1, "cross_bias": 0}[name.rstrip("_0123456789")]
        positions = given.shape[axis]
        beyond = actual.narrow(axis, positions, actual.shape[axis] - positions)
        assert torch.equal(actual.narrow(axis, 0, positions), given), name
        assert (beyond == (MASKED if name == "cross_bias" else 0.0)).all(), name


@pytest.fixture
def filled() -> Filled:
    return Filled()


def test_rows_of_several_batches(filled: Filled) -> None:
    filled.join("a", "b", positions=100)
    filled.join("c", positions=7)
    filled.join("d", "e", "f", positions=220)

    filled.assert_holds("a", "b", "c", "d", "e", "f")


def test_the_last_row_takes_the_place_of_one_that_leaves(filled: Filled) -> None:
    filled.join(*"abcd")
    for row, left in [("b", "adc"), ("c", "ad"), ("a", "d"), ("d", "")]:
        filled.lane.leave(row)
        filled.assert_holds(*left)

    filled.join("e", "f")
    filled.assert_holds("e", "f")


def test_a_lane_is_as_wide_as_its_rows_need(filled: Filled) -> None:
    """In multiples, up to its bound; narrower only where that is worth a copy."""
    widths = []
    for name, positions in [("a", 10), ("b", WIDTH_MULTIPLE), ("c", 450), ("d", 30), ("e", 300)]:
        filled.join(name, positions=positions)
        widths.append(filled.lane.width)
    filled.assert_holds("a", "b", "c", "d", "e")
    assert widths == [64, 64, POSITIONS, POSITIONS, POSITIONS]

    widths.clear()
    for row, left in [("c", "abed"), ("e", "abd"), ("a", "db"), ("b", "d"), ("d", "")]:
        filled.lane.leave(row)
        filled.assert_holds(*left)
        widths.append(filled.lane.width)
    assert widths == [320, 64, 64, 64, 0]


def test_a_little_narrower_is_not_worth_a_copy(filled: Filled) -> None:
    filled.join("a", positions=250)
    filled.join("b", positions=190)
    filled.lane.leave("a")
    assert filled.lane.width == 192

    filled.join("c", positions=300)
    filled.join("d", positions=200)
    filled.lane.leave("c")
    assert filled.lane.width == 320
    filled.assert_holds("b", "d")


def test_cross_attention_is_given_as_the_same_tensors_until_a_row_comes_or_goes(filled: Filled) -> None:
    """What copies its inputs, a CUDA graph's buffers for one, knows by that what it has copied already."""
    filled.join("a", "b")
    first = filled.lane.inputs()
    filled.lane.append(torch.rand(ODD_DIMS.n_text_layer, 2, 2, ODD_DIMS.n_text_head, 1, ODD_DIMS.head_dim))
    second = filled.lane.inputs()
    cross = [name for name in first if name.startswith("cross_")]
    assert all(second[name] is first[name] for name in cross)

    changes: list[Callable[[], None]] = [lambda: filled.join("c"), lambda: filled.lane.leave("a")]
    for change in changes:
        before = filled.lane.inputs()
        change()
        assert not any(filled.lane.inputs()[name] is before[name] for name in cross)


def test_a_step_of_every_row(filled: Filled) -> None:
    dims = ODD_DIMS
    filled.join("a", "b")
    filled.lane.append(new_kv := torch.rand(dims.n_text_layer, 2, 2, dims.n_text_head, 1, dims.head_dim))

    inputs = filled.lane.inputs()
    assert inputs["past_lengths"].tolist() == [TOKENS + 1] * 2
    for layer in range(dims.n_text_layer):
        for index, part in enumerate(("key", "value")):
            assert torch.equal(inputs[f"self_{part}_{layer}"][:, :, TOKENS], new_kv[layer, index, :, :, 0])


def test_inputs_of_some_rows(filled: Filled) -> None:
    filled.join("a", "b", "c")
    everything = filled.lane.inputs()
    for rows in (slice(0, 1), slice(1, 2), slice(1, 3)):
        some = filled.lane.inputs(rows)
        assert some.keys() == everything.keys()
        for name, value in some.items():
            assert value.is_contiguous(), name
            assert torch.equal(value, everything[name][rows]), name


def storages(lane: Lane[str]) -> dict[str, tuple[int, int]]:
    """Where the memory of each input is, and how much of it there is; all of self-attention's is one."""
    found = {name: value.untyped_storage() for name, value in lane.inputs().items() if name != "past_lengths"}
    return {name: (storage.data_ptr(), storage.nbytes()) for name, storage in found.items()}


def test_what_is_reserved_is_used(filled: Filled) -> None:
    filled.lane.reserve(3, 2 * BLOCK)
    reserved = storages(filled.lane)
    assert reserved["cross_bias"][1] == 3 * POSITIONS * 4
    filled.join("a", positions=10)
    filled.join("b", "c", positions=POSITIONS)

    filled.assert_holds("a", "b", "c")
    assert storages(filled.lane) == reserved


SLOTS = 2 * ODD_DIMS.n_text_layer + 2
"""Of a lane: keys and values of cross-attention, their mask, and the cache."""


@pytest.mark.parametrize(
    ("work", "last"),
    [("extend", last) for last in range(SLOTS)] + [("reshape", last) for last in range(2 * SLOTS - 1)],
)
def test_rows_that_there_is_no_room_for_leave_nothing_behind(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, work: str, last: int
) -> None:
    """Wherever the device's memory ends, while the others become wider, or while the new ones come to them."""
    filled.join("a", "b", positions=100)
    done = 0
    real = getattr(Slots, work)

    def fail_after_the_last(*arguments: object) -> None:
        nonlocal done
        real(*arguments)
        done += 1
        if done == last + 1:
            raise torch.OutOfMemoryError("no room for more")

    with monkeypatch.context() as patched:
        patched.setattr(Slots, work, fail_after_the_last)
        with pytest.raises(torch.OutOfMemoryError):
            filled.join("c", "d", positions=300)
    filled.assert_holds("a", "b")

    filled.join("c", positions=300)
    filled.lane.leave("a")
    filled.assert_holds("c", "b")
