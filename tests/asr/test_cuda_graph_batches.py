"""Whole batches, and real speech, are decoded by replay as they are without CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.engine import Engine
from asr.errors import AsrError
from asr.features import SAMPLE_RATE, LogMel
from asr.in_flight import InFlightDecoder
from asr.kv_cache import BLOCK
from asr.lane import Encoded
from asr.model import MASKED, Dims, build_modules
from asr.session import Session
from asr.sessions.pytorch import TorchSession, torch_sessions
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.decoded_rows import decoded, recognition_of
from tests.asr.graphed_steps import TOLERANCE, Graphed, torch_session
from tests.asr.reference import LoadedModel, random_weights

# --- whole batches, decoded as they are in service

SECONDS = (0.0, 3.0, 1.0, 2.0, 0.4)
"""Of audio, which bound the tokens: 20, 95, 45, 70 and 30, so rows drop out, and the cache grows beyond a block."""
ENDS = (200, 330, 40, 300, 256)
"""Encoder positions of each row."""
TEMPERATURES = (1.0, 1.0, 0.0, 1.0, 0.0)
"""Left to itself, a model of random weights says the same few tokens again and again; a draw has it say others."""


@dataclass(frozen=True)
class Crowd:
    """Rows that a model of random weights has to decode. cross: of all of them, at as many positions as the longest."""

    dims: Dims
    tokenizer: Tokenizer
    session: TorchSession
    cross: Mapping[str, Tensor]

    def decoder(self, session: Session) -> InFlightDecoder:
        return InFlightDecoder(session, self.tokenizer, self.dims)

    def decode(self, session: Session, rows: Sequence[int]) -> list[Recognition]:
        options = [self.options(row) for row in rows]
        seconds = [SECONDS[row] for row in rows]
        return decoded(self.decoder(session), self.encoded(rows), options, ["en"] * len(rows), seconds)

    def encoded(self, rows: Sequence[int]) -> Encoded:
        positions = max(ENDS[row] for row in rows)
        bias = torch.stack([torch.where(torch.arange(positions) < ENDS[row], 0.0, MASKED) for row in rows])
        cross = {
            name: (value[list(rows), ..., :positions] if "key" in name else value[list(rows), :, :positions])
            for name, value in self.cross.items()
        }
        return Encoded({name: value.contiguous() for name, value in cross.items()}, bias)

    def options(self, row: int) -> DecodingOptions:
        return DecodingOptions(language="en", prompt="Hear, hear!" * (row == 3), temperature=TEMPERATURES[row])


@pytest.fixture(scope="module")
def crowd(small_dims: Dims, small_vocabulary: Sequence[bytes]) -> Crowd:
    dims = replace(small_dims, n_text_ctx=224, n_audio_ctx=1500)
    generator = torch.Generator().manual_seed(0)
    rows, heads = len(ENDS), dims.n_text_head
    shapes = {"cross_key": (dims.head_dim, max(ENDS)), "cross_value": (max(ENDS), dims.head_dim)}
    cross = {
        f"{part}_{layer}": 3 * torch.randn(rows, heads, *shape, generator=generator)
        for layer in range(dims.n_text_layer)
        for part, shape in shapes.items()
    }
    session = torch_session(build_modules(dims, random_weights(dims))[1], dims)
    return Crowd(dims, Tokenizer(small_vocabulary, dims.n_vocab), session, cross)


@pytest.fixture(scope="module")
def alone(crowd: Crowd) -> list[Recognition]:
    """What each row is without graphs and neighbours."""
    return [crowd.decode(crowd.session, [row])[0] for row in range(len(ENDS))]


def assert_heard(actual: Sequence[Recognition], expected: Sequence[Recognition]) -> None:
    assert [heard.tokens for heard in actual] == [heard.tokens for heard in expected]
    for heard, other in zip(actual, expected, strict=True):
        assert heard.avg_logprob == pytest.approx(other.avg_logprob, abs=TOLERANCE)


def test_the_crowd_is_worth_comparing(alone: Sequence[Recognition]) -> None:
    assert len({heard.tokens for heard in alone}) == len(alone)
    assert max(len(set(heard.tokens)) for heard in alone) > BLOCK


@pytest.mark.parametrize("rows", [[0], [1], [3], [1, 1], [2] * 3, [4] * 5, [0, 1, 2, 3, 4], [4, 1], [3, 2, 0]])
def test_a_batch_by_replay(crowd: Crowd, alone: Sequence[Recognition], rows: Sequence[int]) -> None:
    graphed = Graphed.of(crowd.session, crowd.dims)
    heard = crowd.decode(graphed.session, rows)

    assert_heard(heard, [alone[row] for row in rows])
    longest = max(len(alone[row].tokens) for row in rows)
    read = 1 + len(crowd.tokenizer.task_tokens("en", "transcribe"))
    assert graphed.recorder.replays - graphed.recorder.captures == read + longest - 1  # the first comes with the last


def test_batches_after_each_other(crowd: Crowd, alone: Sequence[Recognition]) -> None:
    graphed = Graphed.of(crowd.session, crowd.dims)
    for rows in ([0, 1, 2, 3, 4], [2], [1, 3], [0, 1, 2, 3, 4], [4, 4, 0], [1]):
        assert_heard(crowd.decode(graphed.session, rows), [alone[row] for row in rows])

    captures = graphed.recorder.captures
    crowd.decode(graphed.session, [0, 1, 2, 3, 4])
    assert graphed.recorder.captures == captures


def test_rows_that_come_and_go_by_replay(crowd: Crowd, alone: Sequence[Recognition]) -> None:
    """One every fifth step, so that the tensors of cross-attention change under the graphs that read them."""
    graphed = Graphed.of(crowd.session, crowd.dims)
    decoder = crowd.decoder(graphed.session)
    present = []
    for row in (1, 3, 0, 2, 4):
        present += decoder.join(crowd.encoded([row]), [crowd.options(row)], ["en"], [SECONDS[row]])
        for _ in range(5):
            decoder.step()
    while decoder.rows:
        decoder.step()

    assert_heard([recognition_of(decoder, row) for row in present], [alone[row] for row in (1, 3, 0, 2, 4)])
    assert all(row.beside > row.steps for row in present)


def test_languages_are_detected_by_replay(crowd: Crowd) -> None:
    graphed = Graphed.of(crowd.session, crowd.dims)
    encoded = Encoded(dict(crowd.cross), torch.zeros(len(ENDS), max(ENDS)))
    expected, actual = (
        crowd.decoder(session).detect_languages(encoded) for session in (crowd.session, graphed.session)
    )

    assert actual == expected
    assert graphed.recorder.captures == int(crowd.tokenizer.is_multilingual)


# --- real speech

Build = Callable[[Session], Engine]


@pytest.fixture(scope="module")
def build(tiny_en: LoadedModel) -> Build:
    """An engine with this decoder session."""
    dims = tiny_en.dims
    encoder, _ = torch_sessions(tiny_en.encoder, tiny_en.decoder, dims)
    return lambda decoder: Engine(dims, tiny_en.checkpoint.tokenizer, encoder, decoder)


@pytest.fixture(scope="module")
def utterances(speech: NDArray[np.float32]) -> list[Utterance]:
    log_mel, english = LogMel(80), DecodingOptions(language="en")
    seconds = ((0.5, 4.7), (6.4, 8.5), (10.5, 13.1))
    cuts = (speech[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] for start, end in seconds)
    return [Utterance(log_mel(cut), english) for cut in cuts]


def test_speech_by_replay(tiny_en: LoadedModel, build: Build, utterances: Sequence[Utterance]) -> None:
    session = torch_session(tiny_en.decoder, tiny_en.dims)
    graphed = Graphed.of(session, tiny_en.dims)
    expected = [build(session).recognize([utterance])[0] for utterance in utterances]
    engine = build(graphed.session)

    def texts(results: Sequence[Recognition | AsrError]) -> list[str]:
        return [result.text for result in results if isinstance(result, Recognition)]

    assert "the best of times" in texts(expected)[0]
    assert texts(engine.recognize(utterances)) == texts(expected)
    assert texts(engine.recognize([utterances[1]] * 2)) == texts(expected)[1:2] * 2
    assert graphed.recorder.replays > graphed.recorder.captures > 1
