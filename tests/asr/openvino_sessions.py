"""Sessions of OpenVINO over real graphs, and inputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.recipe import GraphBackend, Precision, Recipe
from asr.engine import encoder_inputs
from asr.loading import cpu_session
from asr.model import Dims
from asr.utterance import Utterance
from tests.asr.network_runs import THREADS, Sessions
from tests.asr.reference import LoadedModel

CAPACITY = 64  # tokens


def cpu_sessions(model: LoadedModel, backend: GraphBackend, precision: Precision, cache: Path) -> Sessions:
    recipe = Recipe(precision, backend)
    artefacts = ensure_artefacts(model.checkpoint, recipe, cache)
    return Sessions(*(cpu_session(graph, recipe, THREADS) for graph in (artefacts.encoder, artefacts.decoder)))


def encoded(sessions: Sessions, utterances: Sequence[Utterance]) -> dict[str, Tensor]:
    """What the decoder reads of utterances: cross keys and values, and the bias of their positions."""
    inputs = in_dtype(encoder_inputs(utterances), sessions.encoder.dtype)
    return {**sessions.encoder.run(inputs), "cross_bias": inputs["attention_bias"]}


def first_step(dims: Dims, cross: Mapping[str, Tensor], tokens: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Inputs of a decoder that has decoded nothing yet. tokens: (batch, steps), of all of which logits are wanted."""
    batch, steps = tokens.shape
    empty = torch.zeros(batch, dims.n_text_head, CAPACITY, dims.head_dim)
    past = {f"self_{part}_{layer}": empty for layer in range(dims.n_text_layer) for part in ("key", "value")}
    inputs = {
        "tokens": tokens,
        "past_lengths": torch.zeros(batch, dtype=torch.int64),
        "logit_positions": torch.arange(steps).repeat(batch, 1),
    }
    return in_dtype({**inputs, **past, **cross}, dtype)


def in_dtype(inputs: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
