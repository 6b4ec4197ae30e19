"""How large the activations of a model become on real speech.

The network runs in float32 over whole 30 s windows, trailing silence included: a model that never saw silence when its
ranges were chosen garbles the ends of sentences. What enters each linear layer is recorded on the way.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
from asr.model import (
    Decoder,
    Encoder,
    decoder_input_names,
    decoder_output_names,
    encoder_input_names,
    encoder_output_names,
)
from asr.sessions.pytorch import TorchSession
from asr.transcript import DecodingOptions
from asr.utterance import Utterance

MANIFEST = "manifest.jsonl"
MAX_RECORDINGS = 64  # more do not change the ranges
BATCH = 4
HISTOGRAM_BINS = 1024
SAMPLED_VALUES = 1 << 16  # of one activation that go into its histogram; its largest is exact


@dataclass(frozen=True)
class Recording:
    """One recording of a calibration set. text, language: what is said in it and in which, None where not known."""

    path: Path
    text: str | None = None
    language: str | None = None

    def waveform(self) -> NDArray[np.float32]:
        """At most the first 30 s: (samples,) float32 at 16 kHz."""
        return decode_audio(self.path.read_bytes())[:WINDOW_SAMPLES]


@dataclass
class Activation:
    """What was seen of the left operand of one product.

    channel_maxima: (channels,) float32, largest magnitude in each; square_sum, count: of all values; histogram: of
    them, where the entropy method needs it.
    """

    channel_maxima: NDArray[np.float32]
    histogram: Any = None
    square_sum: float = 0.0
    count: int = 0

    def add(self, values: NDArray[np.float32]) -> None:
        """values: (tokens, channels) float32."""
        self.channel_maxima = np.maximum(self.channel_maxima, np.abs(values).max(axis=0))
        self.square_sum += float(np.vdot(values, values))
        self.count += values.size
        if self.histogram is not None:
            stride = max(1, values.size // SAMPLED_VALUES)
            with contextlib.redirect_stdout(io.StringIO()):  # it prints
                self.histogram.collect({"": values[::stride]})

    @property
    def range(self) -> float:
        """The magnitude up to which values are told apart: the largest seen, or by the entropy method where clipping
        and rounding together lose least information (Migacz 2017, "8-bit Inference with TensorRT")."""
        if self.histogram is None:
            return float(self.channel_maxima.max())
        with contextlib.redirect_stdout(io.StringIO()):
            least, most, *_ = self.histogram.compute_collection_result()[""]
        return float(max(abs(least), abs(most)))

    @property
    def signal_to_noise_db(self) -> float:
        """Power of the values over that of the error of rounding them to LEVELS steps of the range."""
        rounding_power = (self.range / LEVELS) ** 2 / 12  # of an error anywhere in half a step up or down
        return 10 * math.log10(self.square_sum / self.count / rounding_power)


def _unseen(channels: int, method: RangeMethod) -> Activation:
    histogram: Any = None
    if method == "entropy":
        collector: Any = calibrate.HistogramCollector  # has no types
        histogram = collector(
            "entropy", symmetric=True, num_bins=HISTOGRAM_BINS, num_quantized_bins=128, percentile=100, scenario="same"
        )
    return Activation(np.zeros(channels, np.float32), histogram)


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


def full_windows(
    recordings: Sequence[Recording], checkpoint: Checkpoint, *, trailing_silence: bool = True
) -> list[Utterance]:
    """Utterances of 30 s: each recording followed by silence, or else all of them one after another, without any.

    Raises:
        ArtefactError: a recording cannot be decoded.
    """
    log_mel = LogMel(checkpoint.dims.n_mels)
    known = checkpoint.tokenizer.languages
    waveforms, languages = [], []
    for recording in recordings:
        try:
            waveforms.append(recording.waveform())
        except (AsrError, OSError) as error:
            raise ArtefactError(str(recording.path), f"cannot be calibrated with ({error})") from error
        languages.append(recording.language if recording.language in known else None)
    if not trailing_silence:
        joined = np.concatenate(waveforms)
        joined = np.resize(joined, -(-len(joined) // WINDOW_SAMPLES) * WINDOW_SAMPLES)  # the last one is filled up
        waveforms = np.split(joined, len(joined) // WINDOW_SAMPLES)
        languages = [None] * len(waveforms)
    return [
        Utterance(log_mel(waveform), DecodingOptions(language=language), full_window=True)
        for waveform, language in zip(waveforms, languages, strict=True)
    ]


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
    dims, cpu = checkpoint.dims, torch.device("cpu")
    engine = Engine(
        dims,
        checkpoint.tokenizer,
        TorchSession(encoder, encoder_input_names(), encoder_output_names(dims), cpu),
        TorchSession(decoder, decoder_input_names(dims), decoder_output_names(), cpu),
    )
    with _recording_activations({"encoder": encoder, "decoder": decoder}, method) as activations:
        for start in tqdm(range(0, len(utterances), BATCH), desc="calibrating", unit="batch"):
            for result in engine.recognize(utterances[start : start + BATCH]):
                if isinstance(result, AsrError):
                    raise result
    return activations


@contextlib.contextmanager
def _recording_activations(modules: Mapping[str, nn.Module], method: RangeMethod) -> Iterator[dict[str, Activation]]:
    activations: dict[str, Activation] = {}

    def record(name: str, inputs: Tensor) -> None:
        values = inputs.flatten(0, -2).numpy()
        if name not in activations:
            activations[name] = _unseen(values.shape[-1], method)
        activations[name].add(values)

    handles = [
        layer.register_forward_pre_hook(lambda _, inputs, name=f"{graph}.{path}": record(name, inputs[0]))
        for graph, module in modules.items()
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        yield activations
    finally:
        for handle in handles:
            handle.remove()
