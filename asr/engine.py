"""Recognise a batch of utterances: encode the frames that hold speech, find the languages, decode."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch

from asr.build.artefacts import ensure_artefacts
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.decoding import BatchDecoder, Encoded
from asr.errors import AsrError, RecognitionError
from asr.features import FRAMES_PER_SECOND, WINDOW_FRAMES, padded
from asr.model import (
    MASKED,
    Dims,
    decoder_input_names,
    decoder_output_names,
    encoder_input_names,
    encoder_output_names,
)
from asr.session import Session
from asr.sessions.onnxruntime import OnnxSession
from asr.sessions.pytorch import TorchSession
from asr.tokenizer import Tokenizer
from asr.transcript import Recognition
from asr.utterance import Utterance
from asr.window import FRAMES_PER_POSITION

POSITIONS_MULTIPLE = 4
"""Batches are padded to this. ONNX Runtime sums a remainder in another order, and the last bit of a sum is enough for
an int8 model to choose another word: a row would depend on how far its neighbours make it be padded."""

Precision: TypeAlias = Literal["fp32", "int8"]
Backend: TypeAlias = Literal["onnx", "torch"]


class Engine:
    """One model, ready to recognise. Not thread-safe: one thread calls it at a time."""

    def __init__(self, dims: Dims, tokenizer: Tokenizer, encoder: Session, decoder: Session) -> None:
        self.dims = dims
        self.tokenizer = tokenizer
        self._encoder = encoder
        self._decoder = BatchDecoder(decoder, tokenizer, dims)

    def recognize(self, utterances: Sequence[Utterance]) -> list[Recognition | AsrError]:
        """Recognise a batch; a row that cannot be recognised has its error in place of a result, the others go on."""
        problems = [self._problem(utterance) for utterance in utterances]
        sound = [utterance for utterance, problem in zip(utterances, problems, strict=True) if problem is None]
        results = iter(self._recognize_rows(sound))
        return [next(results) if problem is None else problem for problem in problems]

    def warm_up(self, batch_size: int) -> None:
        """Run once alone and once in a full batch, so that no request pays for first-time allocations.

        Raises:
            AsrError: the model does not work.
        """
        second_of_noise = np.random.default_rng(0).standard_normal((self.dims.n_mels, FRAMES_PER_SECOND), np.float32)
        for size in (1, batch_size):
            for result in self.recognize([Utterance(second_of_noise)] * size):
                if isinstance(result, AsrError):
                    raise result

    def _problem(self, utterance: Utterance) -> AsrError | None:
        """What makes an utterance unfit for a batch, found before it can harm the others."""
        if utterance.log_mel.ndim != 2 or utterance.log_mel.shape[0] != self.dims.n_mels:
            return RecognitionError(f"features of shape {utterance.log_mel.shape} for a {self.dims.n_mels}-mel model")
        if not 0 < utterance.frames <= WINDOW_FRAMES:
            return RecognitionError(f"{utterance.frames} frames, of at most {WINDOW_FRAMES}")
        if not np.isfinite(utterance.log_mel).all():
            return RecognitionError("features that are not finite")
        try:
            self.tokenizer.task_tokens(utterance.options.language or "en", utterance.options.task)
        except AsrError as error:
            return error
        return None

    def _recognize_rows(self, utterances: Sequence[Utterance]) -> list[Recognition | AsrError]:
        if not utterances:
            return []
        try:
            return list(self._recognize_batch(utterances))
        except RecognitionError as error:
            if len(utterances) == 1:
                return [error]
        return [result for utterance in utterances for result in self._recognize_rows([utterance])]

    def _recognize_batch(self, utterances: Sequence[Utterance]) -> list[Recognition]:
        encoded = self._encode(utterances)
        options = [utterance.options for utterance in utterances]
        given = [option.language or "" for option in options]
        found = given if all(given) else self._decoder.detect_languages(encoded)
        languages = [asked or heard for asked, heard in zip(given, found, strict=True)]
        return self._decoder.decode(encoded, options, languages, [utterance.duration_s for utterance in utterances])

    def _encode(self, utterances: Sequence[Utterance]) -> Encoded:
        windows = [utterance.window for utterance in utterances]
        longest = max(window.positions for window in windows)
        positions = -(-longest // POSITIONS_MULTIPLE) * POSITIONS_MULTIPLE
        frames = positions * FRAMES_PER_POSITION
        position_ids = np.zeros((len(windows), positions), np.int64)
        bias = np.full((len(windows), positions), MASKED, np.float32)
        for row, window in enumerate(windows):
            position_ids[row, : window.positions] = window.position_ids
            bias[row, : window.positions] = window.attention_bias
        batch = {
            "mel": np.stack([padded(utterance.log_mel, frames) for utterance in utterances]),
            "frame_counts": np.array([window.frames for window in windows]),
            "position_ids": position_ids,
            "attention_bias": bias,
        }
        inputs = {name: torch.from_numpy(value).to(self._encoder.device) for name, value in batch.items()}
        return Encoded(self._encoder.run(inputs), inputs["attention_bias"])


def load_engine(
    model: str | Path | Checkpoint,
    *,
    precision: Precision = "int8",
    backend: Backend = "onnx",
    threads: int | None = None,
    cache_dir: Path | None = None,
) -> Engine:
    """Open a checkpoint and get it ready to run; what has to be built is built once and kept in `cache_dir`.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ArtefactError: a built file cannot be made or used.
        ValueError: the backend does not have this precision.
    """
    if backend == "torch" and precision != "fp32":
        raise ValueError(f"backend torch runs fp32, not {precision}")
    checkpoint = model if isinstance(model, Checkpoint) else load_checkpoint(model)
    encoder, decoder = _sessions(checkpoint, precision, backend, threads or usable_cpus(), cache_dir)
    return Engine(checkpoint.dims, checkpoint.tokenizer, encoder, decoder)


def _sessions(
    checkpoint: Checkpoint, precision: Precision, backend: Backend, threads: int, cache_dir: Path | None
) -> tuple[Session, Session]:
    dims = checkpoint.dims
    if backend == "torch":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        encoder, decoder = checkpoint.modules()
        return (
            TorchSession(encoder, encoder_input_names(), encoder_output_names(dims), device),
            TorchSession(decoder, decoder_input_names(dims), decoder_output_names(), device),
        )
    artefacts = ensure_artefacts(checkpoint, precision, cache_dir)
    return OnnxSession(artefacts.encoder, threads), OnnxSession(artefacts.decoder, threads)


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0))
