"""Recognise a batch of utterances: encode the frames that hold speech, find the languages, decode."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asr.decoding import Row
from asr.errors import AsrError, OutOfMemoryError, RecognitionError
from asr.features import FRAMES_PER_SECOND, WINDOW_FRAMES, padded
from asr.in_flight import InFlightDecoder
from asr.lane import Encoded
from asr.memory import DeviceMemory, batch_bytes
from asr.model import MASKED, Dims
from asr.session import Session
from asr.tokenizer import Tokenizer
from asr.transcript import Recognition
from asr.utterance import Utterance
from asr.window import FRAMES_PER_POSITION

POSITIONS_MULTIPLE = 4
"""Batches are padded to this. ONNX Runtime sums a remainder in another order, and the last bit of a sum is enough for
an int8 model to choose another word: a row would depend on how far its neighbours make it be padded."""


class Engine:
    """One model, ready to recognise. `encoders` threads may call `encode` while another calls everything else."""

    def __init__(
        self,
        dims: Dims,
        tokenizer: Tokenizer,
        encoder: Session,
        decoder: Session,
        memory: DeviceMemory | None = None,
        *,
        encoders: int = 1,
        positions_multiple: int = POSITIONS_MULTIPLE,
    ) -> None:
        """memory: of the device, where batches have to be checked against it before they are tried; encoders: threads
        that may run the encoder at a time; positions_multiple: what the encoder's batches are padded to.
        """
        self.dims = dims
        self.tokenizer = tokenizer
        self._encoder = encoder
        self.encoders = encoders
        self._encoding = threading.BoundedSemaphore(encoders)
        self._positions_multiple = positions_multiple
        self._memory = memory
        self._decoder = InFlightDecoder(decoder, tokenizer, dims)

    @property
    def rows_in_flight(self) -> int:
        return self._decoder.rows

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._encoder.device

    def recognize(self, utterances: Sequence[Utterance]) -> list[Recognition | AsrError]:
        """Recognise a batch while nothing else is in flight; a row that cannot be recognised has its error in place of
        a result, the others go on.
        """
        rows = self.start(utterances)
        while self.rows_in_flight:
            self.step()
        return [self.result(row) if isinstance(row, Row) else row for row in rows]

    def encode(self, utterances: Sequence[Utterance]) -> Encoded:
        """Encode a batch ahead of its start.

        Raises:
            RecognitionError: the graph failed; `start` finds out on which utterance.
        """
        if self._memory is not None:
            positions = padded_positions(utterances, self._positions_multiple)
            self._memory.admit(batch_bytes(self.dims, self._encoder.dtype, rows=len(utterances), positions=positions))
        with self._encoding:
            return encode(self._encoder, utterances, self._positions_multiple)

    def start(self, utterances: Sequence[Utterance], encoded: Encoded | None = None) -> list[Row | AsrError]:
        """Have a batch decoded from now on, beside the rows that are in flight already.

        encoded: what `encode` made of them, if it was called.

        → in the same order, rows that `step` takes to their end, unless they have ended at once, and an error in place
        of each that cannot be recognised.
        """
        problems = [self._problem(utterance) for utterance in utterances]
        sound = [utterance for utterance, problem in zip(utterances, problems, strict=True) if problem is None]
        rows = iter(self._start_rows(sound, encoded if len(sound) == len(utterances) else None))
        return [next(rows) if problem is None else problem for problem in problems]

    def step(self) -> list[Row]:
        """Advance every row in flight by a token; → those that ended with it."""
        return self._decoder.step()

    def drop(self, row: Row) -> None:
        """Forget a row in flight."""
        self._decoder.drop(row)

    def result(self, row: Row) -> Recognition | AsrError:
        """Of a row that has ended."""
        return row.error or self._decoder.recognition(row)

    def warm_up(self, batch_size: int) -> None:
        """Run once alone and once in a full batch, so that no request pays for first-time allocations.

        Raises:
            AsrError: the model does not work.
        """
        if self.device.type == "cuda":
            self._decoder.reserve(batch_size)
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

    def _start_rows(
        self, utterances: Sequence[Utterance], encoded: Encoded | None = None, *, may_split: bool = True
    ) -> list[Row | AsrError]:
        """may_split: whether a batch that does not fit the device's memory is tried again in two halves."""
        if not utterances:
            return []
        refusal: OutOfMemoryError | None = None
        try:
            return list(self._start_batch(utterances, encoded or self.encode(utterances)))
        except (OutOfMemoryError, torch.OutOfMemoryError) as error:
            refusal = OutOfMemoryError(str(error.args[0]))  # without the traceback, which holds what filled the memory
        except RecognitionError as error:
            if len(utterances) == 1:
                return [error]
        if refusal is not None:
            if len(utterances) == 1 or not may_split:
                return [refusal] * len(utterances)
            middle = len(utterances) // 2
            halves = utterances[:middle], utterances[middle:]
            return [row for half in halves for row in self._start_rows(half, may_split=False)]
        return [row for utterance in utterances for row in self._start_rows([utterance])]

    def _start_batch(self, utterances: Sequence[Utterance], encoded: Encoded) -> list[Row]:
        options = [utterance.options for utterance in utterances]
        languages = [option.language or "" for option in options]
        return self._decoder.join(encoded, options, languages, [utterance.duration_s for utterance in utterances])


def encode(session: Session, utterances: Sequence[Utterance], multiple: int = POSITIONS_MULTIPLE) -> Encoded:
    """Run the encoder over the windows of a batch, padded to the longest and to a multiple of so many positions.

    Raises:
        RecognitionError: the graph failed.
    """
    device, dtype = session.device, session.dtype
    inputs = {
        name: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in encoder_inputs(utterances, multiple).items()
    }
    return Encoded(session.run(inputs), inputs["attention_bias"])


def padded_positions(utterances: Sequence[Utterance], multiple: int = POSITIONS_MULTIPLE) -> int:
    """Encoder positions of every row of a batch."""
    longest = max(utterance.window.positions for utterance in utterances)
    return -(-longest // multiple) * multiple


def encoder_inputs(utterances: Sequence[Utterance], multiple: int = POSITIONS_MULTIPLE) -> dict[str, Tensor]:
    """What the encoder graph is given for a batch, float32 and int64 on the CPU, named as `asr.model` says."""
    windows = [utterance.window for utterance in utterances]
    positions = padded_positions(utterances, multiple)
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
    return {name: torch.from_numpy(value) for name, value in batch.items()}
