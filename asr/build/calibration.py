"""How large the activations of a model become on real speech.

The network runs in float32 over whole 30 s windows, trailing silence included, as it will have to do: models whose
ranges were chosen without silence are known to garble the ends of sentences. What enters each linear layer is recorded
on the way.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime.quantization import calibrate
from torch import Tensor, nn
from tqdm import tqdm

from asr.audio import decode_audio
from asr.build.products import LEVELS
from asr.build.recipe import RangeMethod
from asr.checkpoint.normalised import Checkpoint
from asr.engine import Engine
from asr.errors import ArtefactError, AsrError
from asr.features import WINDOW_SAMPLES, LogMel
from asr.model import Decoder, Encoder
from asr.sessions.pytorch import torch_sessions
from asr.transcript import DecodingOptions
from asr.utterance import Utterance

MANIFEST = "manifest.jsonl"
MAX_RECORDINGS = 64  # spread over the set; about the hundred steps that calibration is commonly given
BATCH = 4
HISTOGRAM_BINS = 1024
SAMPLED_VALUES = 1 << 16  # of one activation that go into its histogram; its largest is exact


@dataclass(frozen=True)
class Recording:
    """One recording of a calibration set. text, language: what is said in it and in which, None where not known."""

    path: Path
    text: str | None = None
    language: str | None = None


@dataclass(frozen=True)
class Activation:
    """The left operand of one product, on real speech.

    channel_maxima: (channels,) float32, largest magnitude in each; range: magnitude up to which values are told apart
    in int8; mean_square: of all values.
    """

    channel_maxima: NDArray[np.float32]
    range: float
    mean_square: float

    @property
    def signal_to_noise_db(self) -> float:
        """Power of the values over that of the error of rounding them to LEVELS steps of the range."""
        rounding_power = (self.range / LEVELS) ** 2 / 12  # of an error anywhere in half a step up or down
        if self.mean_square == 0:  # always zero, which int8 has exactly
            return math.inf
        return 10 * math.log10(self.mean_square / rounding_power)


class Observer:
    """Sees an activation, a batch at a time.

    The range is the largest magnitude, or by the entropy method where clipping and rounding together lose least
    information (Migacz 2017, "8-bit Inference with TensorRT").
    """

    def __init__(self, method: RangeMethod) -> None:
        self._channel_maxima: NDArray[np.float32] = np.zeros(1, np.float32)
        self._square_sum, self._count = 0.0, 0
        collector: Any = calibrate.HistogramCollector  # has no types
        self._histogram = (
            collector(
                "entropy",
                symmetric=True,
                num_bins=HISTOGRAM_BINS,
                num_quantized_bins=128,
                percentile=100,
                scenario="same",
            )
            if method == "entropy"
            else None
        )

    def add(self, values: NDArray[np.float32]) -> None:
        """values: (tokens, channels) float32."""
        self._channel_maxima = np.maximum(self._channel_maxima, np.abs(values).max(axis=0))
        self._square_sum += float(np.vdot(values, values))
        self._count += values.size
        if self._histogram is not None:
            stride = max(1, values.size // SAMPLED_VALUES)
            with contextlib.redirect_stdout(io.StringIO()):  # it prints
                self._histogram.collect({"": values[::stride]})

    def activation(self) -> Activation:
        """What was seen so far, of at least one value."""
        return Activation(self._channel_maxima, self._range(), self._square_sum / self._count)

    def _range(self) -> float:
        if self._histogram is None:
            return float(self._channel_maxima.max())
        with contextlib.redirect_stdout(io.StringIO()):
            least, most, *_ = self._histogram.compute_collection_result()[""]
        return float(max(abs(least), abs(most)))


def read_recordings(source: Path) -> list[Recording]:
    """The recordings of a manifest.jsonl (an object a line: file, and text and language where known), or of a folder.

    Raises:
        ArtefactError: there is none, or the manifest cannot be read.
    """
    manifest = source / MANIFEST if source.is_dir() else source
    try:
        if manifest.is_file():
            recordings = [
                _recording(manifest.parent, line) for line in manifest.read_text("utf-8").splitlines() if line
            ]
        else:
            recordings = [Recording(path) for path in sorted(source.iterdir()) if path.is_file()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(str(source), f"cannot be read as a calibration set ({error!r})") from error
    if not recordings:
        raise ArtefactError(str(source), "holds no recordings to calibrate with")
    return recordings


def _recording(folder: Path, line: str) -> Recording:
    entry = json.loads(line)
    return Recording(folder / entry["file"], entry.get("text") or None, entry.get("language"))


def evenly(recordings: Sequence[Recording], count: int) -> list[Recording]:
    """At most so many, spread over all."""
    return [recordings[index] for index in np.linspace(0, len(recordings) - 1, min(count, len(recordings))).astype(int)]


def utterances_of(recordings: Sequence[Recording], checkpoint: Checkpoint) -> list[Utterance]:
    """An utterance of each recording's first 30 s, in its language where the model knows it.

    Raises:
        ArtefactError: a recording cannot be decoded.
    """
    log_mel = LogMel(checkpoint.dims.n_mels)
    return [
        Utterance(log_mel(_waveform(recording)), DecodingOptions(language=_language(recording, checkpoint)))
        for recording in recordings
    ]


def full_windows(
    recordings: Sequence[Recording], checkpoint: Checkpoint, *, trailing_silence: bool = True
) -> list[Utterance]:
    """Utterances encoded as 30 s: each recording followed by silence, or all one after another, without any.

    Raises:
        ArtefactError: a recording cannot be decoded.
    """
    if trailing_silence:
        return [replace(utterance, full_window=True) for utterance in utterances_of(recordings, checkpoint)]
    joined = np.concatenate([_waveform(recording) for recording in recordings])
    windows = -(-len(joined) // WINDOW_SAMPLES)
    filled = np.resize(joined, windows * WINDOW_SAMPLES)  # the last one with the beginning again
    log_mel = LogMel(checkpoint.dims.n_mels)
    return [Utterance(log_mel(waveform), full_window=True) for waveform in np.split(filled, windows)]


def _waveform(recording: Recording) -> NDArray[np.float32]:
    """At most the first 30 s: (samples,) float32 at 16 kHz."""
    try:
        return decode_audio(recording.path.read_bytes())[:WINDOW_SAMPLES]
    except (AsrError, OSError) as error:
        raise ArtefactError(str(recording.path), f"cannot be calibrated with ({error})") from error


def _language(recording: Recording, checkpoint: Checkpoint) -> str | None:
    return recording.language if recording.language in checkpoint.tokenizer.languages else None


def observe(
    encoder: Encoder,
    decoder: Decoder,
    checkpoint: Checkpoint,
    utterances: Sequence[Utterance],
    method: RangeMethod = "max",
) -> dict[str, Activation]:
    """Recognise the utterances with the network and record what enters its linear layers.

    → by the name of the product, with `encoder.` or `decoder.` before it. method: how ranges will be chosen.

    Raises:
        RecognitionError: the network fails on one of them.
    """
    engine = Engine(checkpoint.dims, checkpoint.tokenizer, *torch_sessions(encoder, decoder, checkpoint.dims))
    with _observers({"encoder": encoder, "decoder": decoder}, method) as observers:
        for start in tqdm(range(0, len(utterances), BATCH), desc="calibrating", unit="batch"):
            for result in engine.recognize(utterances[start : start + BATCH]):
                if isinstance(result, AsrError):
                    raise result
    return {name: observer.activation() for name, observer in observers.items()}


@contextlib.contextmanager
def _observers(modules: Mapping[str, nn.Module], method: RangeMethod) -> Iterator[dict[str, Observer]]:
    """An observer for each linear layer that runs while the block does."""
    observers: dict[str, Observer] = {}

    def record(name: str, inputs: Tensor) -> None:
        observers.setdefault(name, Observer(method)).add(inputs.flatten(0, -2).numpy())

    handles = [
        layer.register_forward_pre_hook(lambda _, inputs, name=f"{graph}.{path}": record(name, inputs[0]))
        for graph, module in modules.items()
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        yield observers
    finally:
        for handle in handles:
            handle.remove()
