"""Single decoder steps, of a model small enough for every bucket of CUDA graphs, and a session that replays them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.kv_cache import BLOCK
from asr.model import MASKED, Decoder, Dims, decoder_input_names, decoder_output_names
from asr.sessions.cuda_graphs import GraphedSession
from asr.sessions.pytorch import TorchSession
from tests.asr.recorded_graphs import Recorder

CPU = torch.device("cpu")
TOLERANCE = 1e-4  # the buckets' sums are longer, by zeros, and may come in another order
STEP_DIMS = Dims(80, 1500, 8, 2, 1, 101, 448, 8, 2, 2)

Inputs = dict[str, Tensor]


def torch_session(decoder: Decoder, dims: Dims) -> TorchSession:
    return TorchSession(decoder, decoder_input_names(dims), decoder_output_names(), CPU)


@dataclass(frozen=True)
class Graphed:
    """A session, and what it has captured."""

    session: GraphedSession
    recorder: Recorder

    @classmethod
    def of(cls, session: TorchSession, dims: Dims = STEP_DIMS) -> Graphed:
        recorder = Recorder()
        return cls(GraphedSession(session, dims, recorder), recorder)


def step_inputs(rows: int, capacity: int = BLOCK, positions: int = 40, *, steps: int = 1, seed: int = 0) -> Inputs:
    """Inputs of single steps at different lengths; what is beyond them is noise."""
    generator = torch.Generator().manual_seed(seed)
    dims = STEP_DIMS
    heads = (rows, dims.n_text_head)
    shapes = {
        "self_key": (capacity, dims.head_dim),
        "self_value": (capacity, dims.head_dim),
        "cross_key": (dims.head_dim, positions),
        "cross_value": (positions, dims.head_dim),
    }
    ends = positions - torch.arange(rows) % 7
    return {
        "tokens": torch.randint(dims.n_vocab, (rows, steps), generator=generator),
        "past_lengths": (capacity - 1 - 5 * torch.arange(rows)).clamp(min=0),
        "logit_positions": torch.zeros(rows, 1, dtype=torch.int64),
        "cross_bias": torch.where(torch.arange(positions) < ends[:, None], 0.0, MASKED),
        **{
            f"{part}_{layer}": torch.randn(*heads, *shape, generator=generator)
            for part, shape in shapes.items()
            for layer in range(dims.n_text_layer)
        },
    }


def assert_same_step(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=TOLERANCE)
