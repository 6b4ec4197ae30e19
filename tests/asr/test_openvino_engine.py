"""Utterances in OpenVINO as they are served: each encoded by itself, and decoded with whatever is in flight."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from asr.engine import Engine, padded_positions
from asr.loading import load_engine
from asr.sessions.openvino import POSITIONS_MULTIPLE
from asr.transcript import Recognition
from asr.utterance import Utterance
from tests.asr.decoded_rows import assert_nothing_left
from tests.asr.recognition import assert_same, recognized_alone, results_in_flight
from tests.asr.reference import LoadedModel


@pytest.fixture(scope="module")
def openvino(base: LoadedModel, artefact_cache: Path) -> Engine:
    return load_engine(base.checkpoint, precision="int8", backend="openvino", cache_dir=artefact_cache)


@pytest.mark.parametrize("seed", range(2))
def test_who_is_decoded_beside_an_utterance_changes_nothing(
    openvino: Engine, crowd: Sequence[Utterance], seed: int
) -> None:
    order = random.Random(seed).sample(range(len(crowd)), len(crowd))
    results = results_in_flight(openvino, [crowd[number] for number in order], dropped=[order.index(1)])

    assert_nothing_left(openvino._decoder)
    for number, result in zip(order, results, strict=True):
        if number != 1:
            assert isinstance(result, Recognition)
            assert_same(result, recognized_alone(openvino, crowd[number]))


def test_what_is_encoded_has_one_of_75_lengths(openvino: Engine, crowd: Sequence[Utterance]) -> None:
    """The longest is a whole window, which no padding makes longer."""
    lengths = [openvino.encode([utterance]).positions for utterance in crowd]

    assert lengths == [padded_positions([utterance], POSITIONS_MULTIPLE) for utterance in crowd]
    assert {length % 20 for length in lengths} == {0}
    assert max(lengths) == 1500
