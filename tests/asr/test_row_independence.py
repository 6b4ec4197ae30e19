"""Rows of a batch do not touch each other, whatever they are padded with."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from asr.kv_cache import KvCache
from tests.asr.network_runs import (
    CPU,
    TOLERANCE,
    Sessions,
    advance,
    bias_of,
    encode,
    positions_of,
    relative_error,
    start,
)
from tests.asr.reference import LoadedModel

INT8_ROW_TOLERANCE = 0.06
"""Relative to the size of the outputs (root mean square). Activations are quantised token by token, so rows are
independent in the int8 graphs too, and on the processor that this was written on the difference is exactly 0. Elsewhere
a sum may come in another order; a last bit then moves some activation by a whole level of 1/127, and so on through the
layers: a change of the input by 1e-7 moves outputs by up to 0.047. Noise leaking in from padding does far more."""

FRAME_COUNTS = [300, 133, 500]


@pytest.fixture(scope="module")
def padded_batch(windows: Tensor) -> Tensor:
    """Three rows padded with noise, none of which may matter: (3, n_mels, 500)."""
    batch = torch.randn(3, windows.shape[1], max(FRAME_COUNTS), generator=torch.Generator().manual_seed(0))
    for row, count in enumerate(FRAME_COUNTS):
        batch[row, :, :count] = windows[row % 2, :, 500 * row : 500 * row + count]
    return batch


def own_positions(cross: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """Keys and values of one row up to its length."""
    count = positions_of(FRAME_COUNTS[row])
    return {
        name: value[row : row + 1, :, :, :count] if "key" in name else value[row : row + 1, :, :count]
        for name, value in cross.items()
    }


def row_alone(sessions: Sessions, batch: Tensor, row: int) -> dict[str, Tensor]:
    """Cross keys and values of one row up to its end, with as much padding as makes its frames even."""
    count = FRAME_COUNTS[row]
    return encode(sessions, torch.nn.functional.pad(batch[row : row + 1, :, :count], (0, count % 2)), [count])


def test_a_padded_row_is_encoded_as_if_alone(torch_pair: Sessions, padded_batch: Tensor) -> None:
    together = encode(torch_pair, padded_batch, FRAME_COUNTS)

    for row in range(len(FRAME_COUNTS)):
        part, single = own_positions(together, row), row_alone(torch_pair, padded_batch, row)
        assert part.keys() == single.keys()
        for name, value in single.items():
            torch.testing.assert_close(part[name], value, rtol=0, atol=1e-4)


def test_a_padded_row_is_encoded_as_if_alone_in_int8(int8_sessions: Sessions, padded_batch: Tensor) -> None:
    together = encode(int8_sessions, padded_batch, FRAME_COUNTS)

    for row in range(len(FRAME_COUNTS)):
        part, single = own_positions(together, row), row_alone(int8_sessions, padded_batch, row)
        for name, value in single.items():
            assert relative_error(part[name], value) < INT8_ROW_TOLERANCE, name


def test_cross_positions_beyond_a_rows_length_do_not_matter(
    model: LoadedModel, sessions: Sessions, padded_batch: Tensor
) -> None:
    cross = encode(sessions, padded_batch, FRAME_COUNTS)
    bias = bias_of(FRAME_COUNTS, positions_of(max(FRAME_COUNTS)))
    together = advance(sessions, KvCache(model.dims, 3, CPU), [start(model)] * 3, cross, bias)

    for row, frames in enumerate(FRAME_COUNTS):
        own = {name: value.contiguous() for name, value in own_positions(cross, row).items()}
        single = advance(
            sessions, KvCache(model.dims, 1, CPU), [start(model)], own, torch.zeros(1, positions_of(frames))
        )
        torch.testing.assert_close(together[row : row + 1], single, rtol=0, atol=TOLERANCE)
