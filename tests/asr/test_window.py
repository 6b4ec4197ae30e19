"""Which positions are computed, exactly; and that the ones left out are not missed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.features import SAMPLE_RATE, WINDOW_FRAMES, LogMel
from asr.loading import load_engine
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from asr.window import DENSE_SILENCE_POSITIONS, STRIDE_POSITIONS, WINDOW_POSITIONS, window_for
from tests.asr.reference import LoadedModel

SPANS_S = [(0.1, 4.67), (6.37, 8.5), (8.5, 13.17), (13.17, 18.85), (16.87, 20.62), (17.32, 24.4), (20.62, 26.15)]
"""From pause to pause of the recording. Some of them come out wrong, with either model, where the silence after
them is left out, or sampled without a bias."""


def counts(frames: int) -> NDArray[np.float64]:
    """How many positions each stands for."""
    return np.exp(window_for(frames).attention_bias.astype(np.float64))


def test_constants() -> None:
    assert (WINDOW_POSITIONS, DENSE_SILENCE_POSITIONS, STRIDE_POSITIONS) == (1500, 50, 16)


@pytest.mark.parametrize("frames", [1, 500, WINDOW_FRAMES])
def test_a_full_window_has_every_position_once(frames: int) -> None:
    window = window_for(frames, full=True)

    assert window.position_ids.tolist() == list(range(1500))
    assert window.attention_bias.tolist() == [0.0] * 1500
    assert window.frames == WINDOW_FRAMES


def test_a_window_full_of_speech_is_a_full_window() -> None:
    window = window_for(WINDOW_FRAMES)

    assert window.position_ids.tolist() == list(range(1500))
    assert window.attention_bias.tolist() == [0.0] * 1500


def test_speech_and_a_second_are_kept_and_every_sixteenth_position_after_them() -> None:
    """5 s are 250 positions, 300 with the second after them; 300 to 1498 are 74 groups of 16 and one of 15."""
    window = window_for(500)
    groups = [*range(308, 1492, 16), 1491]

    assert window.position_ids.tolist() == [*range(300), *groups, 1499]
    assert window.attention_bias.tolist() == pytest.approx([0.0] * 300 + [np.log(16)] * 74 + [np.log(15), 0.0])
    assert window.positions == 376
    assert window.frames == 752


@pytest.mark.parametrize(("frames", "dense"), [(1, 51), (2, 51), (3, 52), (4, 52), (2865, 1483)])
def test_an_odd_frame_has_a_position_of_its_own(frames: int, dense: int) -> None:
    assert window_for(frames).position_ids[:dense].tolist() == list(range(dense))
    assert counts(frames)[:dense].tolist() == [1.0] * dense
    assert counts(frames)[dense] == pytest.approx(16)


@pytest.mark.parametrize("frames", [2895, 2897, 2899, 2950])
def test_nearly_all_of_the_window_is_all_of_it(frames: int) -> None:
    """Nothing is left to leave out, so that no position may come twice."""
    assert window_for(frames).position_ids.tolist() == list(range(1500))


def test_every_window_stands_for_the_whole() -> None:
    for frames in range(1, WINDOW_FRAMES + 1):
        window, standing_for = window_for(frames), counts(frames)
        assert standing_for.sum() == pytest.approx(1500, abs=1e-3), frames
        assert (np.diff(window.position_ids) > 0).all(), frames
        assert window.position_ids[-1] == 1499, frames
        assert standing_for[-1] == 1.0, frames
        assert len(standing_for) == window.positions, frames
        assert frames <= window.frames <= WINDOW_FRAMES, frames


def test_each_position_is_in_the_middle_of_those_that_it_stands_for() -> None:
    for frames in range(1, WINDOW_FRAMES + 1, 7):
        standing_for = np.rint(counts(frames)).astype(int)
        first = np.concatenate(([0], np.cumsum(standing_for)[:-1]))
        assert window_for(frames).position_ids.tolist() == (first + standing_for // 2).tolist(), frames


def test_short_utterances_are_cheap() -> None:
    assert [window_for(100 * seconds).positions for seconds in (1, 2, 5, 10, 20)] == [189, 236, 376, 611, 1080]


def words(text: str) -> list[str]:
    """The words alone: where speech is cut, the model takes or leaves a comma or a capital for next to nothing."""
    return re.sub(r"[^a-z' ]", "", text.lower()).split()


@pytest.mark.parametrize("name", ["base", "tiny_en"])
def test_speech_reads_as_in_a_full_window(
    request: pytest.FixtureRequest, speech: NDArray[np.float32], artefact_cache: Path, name: str
) -> None:
    model: LoadedModel = request.getfixturevalue(name)
    engine = load_engine(model.checkpoint, precision="int8", cache_dir=artefact_cache)
    log_mel, options = LogMel(model.dims.n_mels), DecodingOptions(language="en")
    for start_s, end_s in SPANS_S:
        cut = speech[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)]
        sparse = Utterance(log_mel(cut), options)
        [expected] = engine.recognize([replace(sparse, full_window=True)])
        [actual] = engine.recognize([sparse])
        assert isinstance(expected, Recognition)
        assert isinstance(actual, Recognition)
        assert words(actual.text) == words(expected.text), (start_s, end_s)
        assert len(words(actual.text)) >= 2 * (end_s - start_s), "as many words as the reader says in that time"
