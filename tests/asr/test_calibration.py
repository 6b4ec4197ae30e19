"""Calibration sets, the windows that are made of them, and what is seen of the network on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asr.audio import decode_audio
from asr.build.calibration import Activation, Recording, evenly, full_windows, observe, read_recordings
from asr.errors import ArtefactError, RecognitionError
from asr.features import SAMPLE_RATE, WINDOW_FRAMES, WINDOW_SAMPLES, LogMel
from asr.utterance import Utterance
from tests.asr.reference import LoadedModel
from tests.audio_files import wav

Samples = NDArray[np.float32]


# --- calibration sets


def test_a_folder(tmp_path: Path) -> None:
    """Every file in the order of their names, and no folder in it."""
    for name in ("b.wav", "a.flac"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()

    assert read_recordings(tmp_path) == [Recording(tmp_path / "a.flac"), Recording(tmp_path / "b.wav")]


MANIFEST = """\
{"file": "b.wav", "text": "It was the best of times.", "language": "en"}

{"file": "clips/a.wav", "speaker": "A"}
{"file": "c.wav", "text": "", "language": null}
{"file": "d.wav", "text": "那是", "language": "zh"}
"""


@pytest.mark.parametrize(
    ("name", "given"),
    [("manifest.jsonl", ""), ("manifest.jsonl", "manifest.jsonl"), ("test.jsonl", "test.jsonl")],
    ids=["its folder", "the file", "of another name"],
)
def test_a_manifest(tmp_path: Path, name: str, given: str) -> None:
    (tmp_path / name).write_text(MANIFEST, "utf-8")
    (tmp_path / "not listed.wav").touch()

    assert read_recordings(tmp_path / given) == [
        Recording(tmp_path / "b.wav", "It was the best of times.", "en"),
        Recording(tmp_path / "clips/a.wav"),
        Recording(tmp_path / "c.wav"),
        Recording(tmp_path / "d.wav", "那是", "zh"),
    ]


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'"a.wav"', b'{"text": "no file"}', b'{"file": 5}', b"\xff"],
    ids=["no JSON", "list", "string", "no name", "number", "no UTF-8"],
)
def test_a_manifest_that_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "manifest.jsonl"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match="cannot be read as a calibration set") as caught:
        read_recordings(path)

    assert str(path) in str(caught.value)


def test_nothing_to_calibrate_with(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="holds no recordings"):
        read_recordings(tmp_path)
    (tmp_path / "manifest.jsonl").touch()
    with pytest.raises(ArtefactError, match="holds no recordings"):
        read_recordings(tmp_path)
    with pytest.raises(ArtefactError, match="cannot be read"):
        read_recordings(tmp_path / "no such folder")


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, list(range(10))), (64, list(range(10)))]
)
def test_some_of_many(count: int, expected: list[int]) -> None:
    recordings = [Recording(Path(str(index))) for index in range(10)]

    assert evenly(recordings, count) == [recordings[index] for index in expected]


# --- windows


def written(folder: Path, *cuts: Samples, language: str | None = None) -> list[Recording]:
    recordings = [Recording(folder / f"{index}.wav", language=language) for index in range(len(cuts))]
    for recording, cut in zip(recordings, cuts, strict=True):
        recording.path.write_bytes(wav(cut))
    return recordings


def cuts_of(speech: Samples, *seconds: float) -> list[Samples]:
    """One after another."""
    ends = np.cumsum([round(length * SAMPLE_RATE) for length in seconds])
    return np.split(speech, ends)[:-1]


def test_each_recording_ends_in_silence(base: LoadedModel, speech: Samples, tmp_path: Path) -> None:
    """And of a long one the first 30 s are taken."""
    recordings = written(tmp_path, *cuts_of(speech, 4.0, 36.0), language="en")
    recordings.append(replace(recordings[0], language="tlh"))
    windows = full_windows(recordings, base.checkpoint)

    for utterance, recording in zip(windows, recordings, strict=True):
        samples = decode_audio(recording.path.read_bytes())[:WINDOW_SAMPLES]
        assert np.array_equal(utterance.log_mel, LogMel(80)(samples))
        assert utterance.window.frames == WINDOW_FRAMES
    assert [utterance.frames for utterance in windows] == [402, 3000, 402]
    assert [utterance.options.language for utterance in windows] == ["en", "en", None]


def test_speech_alone(base: LoadedModel, speech: Samples, tmp_path: Path) -> None:
    """All recordings one after another, cut every 30 s; the last window is filled up with the first ones."""
    recordings = written(tmp_path, *cuts_of(speech, 18.0, 16.0), language="en")
    windows = full_windows(recordings, base.checkpoint, trailing_silence=False)
    joined = np.concatenate([decode_audio(recording.path.read_bytes()) for recording in recordings])
    expected = [joined[:WINDOW_SAMPLES], np.concatenate((joined[WINDOW_SAMPLES:], joined[: 26 * SAMPLE_RATE]))]

    for utterance, samples in zip(windows, expected, strict=True):
        assert utterance.log_mel.shape == (80, WINDOW_FRAMES)
        assert np.array_equal(utterance.log_mel, LogMel(80)(samples))
        assert utterance.options.language is None


@pytest.mark.parametrize("trailing_silence", [True, False])
@pytest.mark.parametrize("break_it", [lambda path: path.unlink(), lambda path: path.write_bytes(b"no audio")])
def test_a_recording_that_cannot_be_heard(
    base: LoadedModel, speech: Samples, tmp_path: Path, break_it: Callable[[Path], object], trailing_silence: bool
) -> None:
    recordings = written(tmp_path, *cuts_of(speech, 1.0, 1.0))
    break_it(recordings[1].path)
    with pytest.raises(ArtefactError, match=r"1\.wav: cannot be calibrated with"):
        full_windows(recordings, base.checkpoint, trailing_silence=trailing_silence)


# --- what is seen


class Seen:
    """What enters one layer, as a hook of this test sees it."""

    def __init__(self) -> None:
        self.maxima = torch.zeros(())
        self.square_sum = 0.0
        self.count = 0

    def __call__(self, values: Tensor) -> None:
        self.maxima = torch.maximum(self.maxima, values.abs().flatten(0, -2).amax(dim=0))
        self.square_sum += float(values.double().square().sum())
        self.count += values.numel()


Observed: TypeAlias = tuple[dict[str, Activation], dict[str, Seen]]
"""By the name of the product: what `observe` saw, and what this test saw."""


@pytest.fixture(scope="module")
def observed(tiny_en: LoadedModel, speech: Samples, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """On two recordings with silence."""
    modules = nn.ModuleDict({"encoder": tiny_en.encoder, "decoder": tiny_en.decoder})
    layers = {name: layer for name, layer in modules.named_modules() if isinstance(layer, nn.Linear)}
    seen = {name: Seen() for name in layers}
    handles = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: seen[name](inputs[0]))
        for name, layer in layers.items()
    ]
    windows = full_windows(written(tmp_path_factory.mktemp("cuts"), *cuts_of(speech, 2.0, 3.0)), tiny_en.checkpoint)
    activations = observe(tiny_en.encoder, tiny_en.decoder, tiny_en.checkpoint, windows, "entropy")
    for handle in handles:
        handle.remove()
    return activations, seen


def test_everything_that_enters_a_layer_is_seen(observed: Observed) -> None:
    activations, seen = observed

    assert activations.keys() == seen.keys()
    for name, activation in activations.items():
        assert activation.channel_maxima.tolist() == seen[name].maxima.tolist()
        mean_square = seen[name].square_sum / seen[name].count
        assert activation.mean_square == pytest.approx(mean_square, rel=1e-4)
    for name in ("encoder.blocks.0.mlp.2", "decoder.blocks.3.mlp.0"):
        assert 0 < activations[name].range < activations[name].channel_maxima.max()


def test_nothing_is_left_on_the_network(observed: Observed, tiny_en: LoadedModel) -> None:
    networks = nn.ModuleDict({"encoder": tiny_en.encoder, "decoder": tiny_en.decoder})

    assert observed[0]
    assert not any(module._forward_pre_hooks for module in networks.modules())


def test_a_network_that_fails(tiny_en: LoadedModel) -> None:
    silence = Utterance(np.full((80, 100), np.nan, np.float32))
    with pytest.raises(RecognitionError, match="not finite"):
        observe(tiny_en.encoder, tiny_en.decoder, tiny_en.checkpoint, [silence])
