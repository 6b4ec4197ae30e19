"""A row's numbers in OpenVINO do not depend on what shares its batch, or on how far that makes it be padded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.build.recipe import Precision
from asr.utterance import Utterance
from tests.asr.excerpts import ENGLISH, Recording
from tests.asr.network_runs import Sessions, relative_error, start
from tests.asr.openvino_sessions import cpu_sessions, encoded, first_step
from tests.asr.reference import LoadedModel

TOLERANCES: dict[Precision, float] = {"fp32": 1e-5, "bf16": 0.02, "int8": 0.06}
"""Relative to the size of the numbers (root mean square). On the processor that this was written on, an AMD EPYC with
AVX-512, the difference is exactly 0. Elsewhere a sum may come in another order, of which coarse numbers make more."""


@pytest.fixture(scope="module", params=TOLERANCES)
def precision(request: pytest.FixtureRequest) -> Precision:
    given: Precision = request.param
    return given


@pytest.fixture(scope="module")
def openvino(tiny_en: LoadedModel, artefact_cache: Path, precision: Precision) -> Sessions:
    return cpu_sessions(tiny_en, "openvino", precision, artefact_cache)


@pytest.fixture(scope="module")
def rows(recording: Recording) -> list[Utterance]:
    """Of 1 s to 15 s."""
    return [Utterance(recording.cut(start_s, end_s), ENGLISH) for start_s, end_s in ((0.5, 4.7), (6.4, 7.3), (13, 28))]


@pytest.fixture(scope="module")
def together(openvino: Sessions, rows: list[Utterance]) -> dict[str, Tensor]:
    return encoded(openvino, rows)


def cut(cross: Mapping[str, Tensor], positions: int) -> dict[str, Tensor]:
    """Keys and values up to so many positions."""
    return {
        name: value[:, :, :positions] if name.startswith("cross_value") else value[..., :positions]
        for name, value in cross.items()
    }


def test_in_the_encoder(
    openvino: Sessions, rows: list[Utterance], together: dict[str, Tensor], precision: Precision
) -> None:
    for index, row in enumerate(rows):
        positions = row.window.positions
        alone = cut(encoded(openvino, [row]), positions)
        beside = cut({name: value[index : index + 1] for name, value in together.items()}, positions)
        for name, value in alone.items():
            assert relative_error(beside[name].float(), value.float()) <= TOLERANCES[precision], name


def test_in_the_decoder(
    tiny_en: LoadedModel,
    openvino: Sessions,
    rows: list[Utterance],
    together: dict[str, Tensor],
    precision: Precision,
) -> None:
    """Whose rows are padded by tokens, too."""
    dims, dtype = tiny_en.dims, openvino.decoder.dtype
    tokens = torch.tensor([start(tiny_en)] * len(rows))
    padded = torch.nn.functional.pad(tokens, (0, 5))
    beside = openvino.decoder.run(first_step(dims, together, padded, dtype))["logits"]

    for index in range(len(rows)):
        own = {name: value[index : index + 1] for name, value in together.items()}
        alone = openvino.decoder.run(first_step(dims, own, tokens[:1], dtype))["logits"]
        assert relative_error(beside[index : index + 1, : tokens.shape[1]], alone) <= TOLERANCES[precision]
