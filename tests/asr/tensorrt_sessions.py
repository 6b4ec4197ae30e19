"""Sessions over the stand-ins for TensorRT, and inputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from asr.kv_cache import BLOCK
from asr.model import Dims, decoder_input_names
from asr.sessions.tensorrt import TensorRTSession
from tests.asr.tensorrt_stand_ins import Machine, ProgramOrder

CPU = torch.device("cpu")
DIMS = Dims(80, 1500, 16, 2, 2, 51_865, 448, 16, 2, 2)
MAX_BATCH = 4
FRAMES = (280, 800, 3000)


def session_of(machine: Machine, plan: Path) -> TensorRTSession:
    return TensorRTSession(plan, CPU, machine.session_library, ProgramOrder())


def noise(shape: Sequence[int]) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0))


def decoder_inputs(
    steps: int = 1, wanted: int = 1, batch: int = 2, capacity: int = BLOCK, positions: int = 144
) -> dict[str, Tensor]:
    heads, head_dim = DIMS.n_text_head, DIMS.head_dim
    inputs = {
        "tokens": torch.arange(batch * steps).view(batch, steps),
        "past_lengths": torch.full((batch,), 5),
        "logit_positions": torch.zeros((batch, wanted), dtype=torch.int64),
        "cross_bias": noise((batch, positions)),
    }
    for name in decoder_input_names(DIMS)[len(inputs) :]:
        if name.startswith("self"):
            inputs[name] = noise((batch, heads, capacity, head_dim))
        else:
            inputs[name] = noise((batch, heads, *((head_dim, positions) if "key" in name else (positions, head_dim))))
    return inputs


def assert_equal(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=0)
