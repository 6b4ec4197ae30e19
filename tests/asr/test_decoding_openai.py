"""Decoding of real speech gives openai-whisper's results, and repetition is measured as openai-whisper does."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest
import torch
import whisper
from numpy.typing import NDArray
from whisper.decoding import DecodingOptions as OpenAIOptions
from whisper.decoding import DecodingResult
from whisper.model import ModelDimensions, Whisper

from asr.decoding import compression_ratio
from asr.engine import Engine
from asr.features import SAMPLE_RATE, WINDOW_FRAMES, LogMel, padded
from asr.sessions.pytorch import torch_sessions
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.reference import LoadedModel

pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken:pytest.PytestUnraisableExceptionWarning")  # whisper's files


# --- against openai-whisper


@pytest.fixture(scope="module")
def torch_engine(tiny_en: LoadedModel) -> Engine:
    sessions = torch_sessions(tiny_en.encoder, tiny_en.decoder, tiny_en.dims)
    return Engine(tiny_en.dims, tiny_en.checkpoint.tokenizer, *sessions)


@pytest.fixture(scope="module")
def openai_model(tiny_en: LoadedModel) -> Whisper:
    model = Whisper(ModelDimensions(**dataclasses.asdict(tiny_en.dims)))
    model.load_state_dict(tiny_en.weights)
    return model.eval()


@pytest.mark.parametrize("prompt", ["", "A Tale of Two Cities, by Charles Dickens."])
@pytest.mark.parametrize(("start_s", "end_s"), [(0.5, 10.5), (3.0, 28.0)])
def test_the_same_tokens_as_openai(
    torch_engine: Engine, openai_model: Whisper, speech: NDArray[np.float32], start_s: float, end_s: float, prompt: str
) -> None:
    log_mel = LogMel(80)(speech[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)])
    options = OpenAIOptions(without_timestamps=True, fp16=False, language="en", prompt=prompt or None)
    expected = whisper.decoding.decode(openai_model, torch.from_numpy(padded(log_mel, WINDOW_FRAMES)), options)
    [actual] = torch_engine.recognize(
        [Utterance(log_mel, DecodingOptions(language="en", prompt=prompt), full_window=True)]
    )

    assert isinstance(expected, DecodingResult)
    assert isinstance(actual, Recognition)
    assert list(actual.tokens) == expected.tokens
    assert len(actual.tokens) > 2 * (end_s - start_s)
    assert actual.text.strip() == expected.text
    assert actual.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-3)
    assert actual.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-3)
    assert actual.compression_ratio == pytest.approx(
        expected.compression_ratio, rel=0.02
    )  # of the text without its blank


# --- repetition


def test_compression_ratio() -> None:
    repeated = " all work and no play" * 20

    assert compression_ratio(repeated) == len(repeated) / len(zlib.compress(repeated.encode())) > 10
    assert compression_ratio("") == 0.0
    assert compression_ratio(" Grüße") == pytest.approx(8 / len(zlib.compress(" Grüße".encode())))
    assert compression_ratio(" It was the best of times, it was the worst of times.") < 2.4
