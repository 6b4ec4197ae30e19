"""The network as PyTorch modules and as exported graphs, and how to run either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.recipe import Precision, Recipe
from asr.kv_cache import KvCache
from asr.model import MASKED
from asr.session import Session
from asr.sessions.onnxruntime import OnnxSession
from asr.window import FRAMES_PER_POSITION
from tests.asr.reference import LoadedModel

TOLERANCE = 1e-3
CPU = torch.device("cpu")
THREADS = 1


@dataclass(frozen=True)
class Sessions:
    encoder: Session
    decoder: Session


def built_sessions(model: LoadedModel, precision: Precision, cache: Path) -> Sessions:
    artefacts = ensure_artefacts(model.checkpoint, Recipe(precision), cache)
    return Sessions(OnnxSession(artefacts.encoder, THREADS), OnnxSession(artefacts.decoder, THREADS))


def encode(
    sessions: Sessions,
    mel: Tensor,
    frame_counts: Sequence[int],
    *,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
) -> dict[str, Tensor]:
    """Cross keys and values of each row's frames; where nothing else is said, they are the beginning of the window."""
    batch, positions = len(mel), mel.shape[-1] // FRAMES_PER_POSITION
    return sessions.encoder.run(
        {
            "mel": mel.contiguous(),
            "frame_counts": torch.tensor(frame_counts),
            "position_ids": torch.arange(positions).repeat(batch, 1) if position_ids is None else position_ids,
            "attention_bias": bias_of(frame_counts, positions) if attention_bias is None else attention_bias,
        }
    )


def bias_of(frame_counts: Sequence[int], positions: int) -> Tensor:
    """(batch, positions) float32: 0 for the positions that these frames make, MASKED after them."""
    ends = torch.tensor([positions_of(count) for count in frame_counts])
    return torch.where(torch.arange(positions) < ends[:, None], 0.0, MASKED)


def positions_of(frames: int) -> int:
    return -(-frames // FRAMES_PER_POSITION)


def advance(
    sessions: Sessions, cache: KvCache, rows: Sequence[Sequence[int]], cross: Mapping[str, Tensor], cross_bias: Tensor
) -> Tensor:
    """Feed each row its tokens, however many; → the logits of every step, (batch, steps, vocab)."""
    counts = torch.tensor([len(row) for row in rows])
    steps = int(counts.max())
    inputs = {
        "tokens": torch.tensor([[*row, *[0] * (steps - len(row))] for row in rows]),
        "past_lengths": cache.lengths,
        "logit_positions": torch.arange(steps).repeat(len(rows), 1),
        "cross_bias": cross_bias,
    }
    outputs = sessions.decoder.run({**inputs, **cache.tensors(), **cross})
    cache.append(outputs["new_kv"], counts)
    return outputs["logits"]


def start(model: LoadedModel) -> list[int]:
    tokenizer = model.checkpoint.tokenizer
    return [tokenizer.sot, *tokenizer.task_tokens("en", "transcribe")]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())
