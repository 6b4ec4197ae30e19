"""How fast Whisper can be at best on a device.

A roofline (Williams et al. 2009, doi:10.1145/1498765.1498785): a stage takes at least the time of its arithmetic at the
peak rate of the device, and at least the time of its bytes at the bandwidth of the memory, so at least the longer of
the two. The stages are the encoder, once a batch, and the decoder step, once a token: a step reads the weights of the
decoder once for all rows, and the keys and values of every row.

What is left out makes the bound lower, never wrong: activations stay on the chip, and softmax, norms, GELU, the gather
of embeddings, the scales of int8 weights, computing log-mel, launches and the host cost nothing; the prompt is one step
like any other. A cache that holds a whole model is left out as well, and could beat the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from asr.devices import Arithmetic, Device
from asr.features import FRAMES_PER_SECOND
from asr.model import Dims
from asr.window import FRAMES_PER_POSITION, WINDOW_POSITIONS

POSITIONS_PER_SECOND = FRAMES_PER_SECOND // FRAMES_PER_POSITION  # 50
PREFIX_TOKENS = 4  # start, language, task, no timestamps


def _size(state: int, heads: int, layers: int, *, n_vocab: int = 51_865, n_mels: int = 80) -> Dims:
    return Dims(n_mels, WINDOW_POSITIONS, state, heads, layers, n_vocab, 448, state, heads, layers)


_UP_TO_MEDIUM = {
    "tiny": _size(384, 6, 4),
    "base": _size(512, 8, 6),
    "small": _size(768, 12, 12),
    "medium": _size(1024, 16, 24),
}
_LARGE_V2 = _size(1280, 20, 32)
_LARGE_V3 = _size(1280, 20, 32, n_vocab=51_866, n_mels=128)
_TURBO = replace(_LARGE_V3, n_text_layer=4)
MODELS: Mapping[str, Dims] = {
    **_UP_TO_MEDIUM,
    **{f"{name}.en": replace(dims, n_vocab=51_864) for name, dims in _UP_TO_MEDIUM.items()},
    "large-v1": _LARGE_V2,
    "large-v2": _LARGE_V2,
    "large-v3": _LARGE_V3,
    "large": _LARGE_V3,
    "large-v3-turbo": _TURBO,
    "turbo": _TURBO,
}


@dataclass(frozen=True)
class NumberFormats:
    """How numbers are kept and multiplied.

    matrix_bytes: of a weight in the convolutions, projections and feed-forward layers; other_bytes: of every other
    weight (vocabulary head, biases, norms, positions) and of log-mel; kv_bytes: of a key's or value's element.
    matrix_arithmetic: of products with those matrices; other_arithmetic: of attention and of the vocabulary head.
    """

    matrix_bytes: int
    other_bytes: int
    kv_bytes: int
    matrix_arithmetic: Arithmetic
    other_arithmetic: Arithmetic


PRECISIONS: Mapping[str, NumberFormats] = {
    "fp32": NumberFormats(4, 4, 4, "fp32", "fp32"),
    "fp16": NumberFormats(2, 2, 2, "fp16", "fp16"),
    "int8-weights": NumberFormats(1, 2, 2, "fp16", "fp16"),  # kept in int8, multiplied in fp16
    "int8": NumberFormats(1, 2, 2, "int8", "fp16"),
    "int8-kv": NumberFormats(1, 2, 1, "int8", "fp16"),
    "int8-cpu": NumberFormats(1, 4, 4, "int8", "fp32"),  # with fp32 for the rest
}


@dataclass(frozen=True)
class Parameters:
    """Weights of a network by number. others: vocabulary head, biases and norms; positions: gathered, never read
    whole."""

    matrices: int
    others: int
    positions: int

    def read_bytes(self, formats: NumberFormats) -> int:
        """What one pass reads of them."""
        return self.matrices * formats.matrix_bytes + self.others * formats.other_bytes

    def stored_bytes(self, formats: NumberFormats) -> int:
        return self.read_bytes(formats) + self.positions * formats.other_bytes


@dataclass(frozen=True)
class Flops:
    """Floating-point operations, a multiplication and an addition being two. matrices: products with the weights that
    int8 narrows; others: attention products and the vocabulary head."""

    matrices: int
    others: int

    @property
    def total(self) -> int:
        return self.matrices + self.others

    def times(self, rows: int) -> Flops:
        return Flops(self.matrices * rows, self.others * rows)


def encoder_parameters(dims: Dims) -> Parameters:
    """The cross-attention key and value projections count as the encoder's, which applies them once an utterance."""
    state, text_state = dims.n_audio_state, dims.n_text_state
    convolutions = 3 * dims.n_mels * state + 3 * state**2
    blocks = dims.n_audio_layer * (4 + 8) * state**2  # attention, and feed-forward of four times the width
    cross = dims.n_text_layer * 2 * state * text_state
    block_vectors = (2 * 2 + 3 + 5) * state  # two norms; biases of attention, whose keys have none, and feed-forward
    vectors = (2 + 2) * state + dims.n_audio_layer * block_vectors + dims.n_text_layer * text_state
    return Parameters(convolutions + blocks + cross, vectors, dims.n_audio_ctx * state)


def decoder_parameters(dims: Dims) -> Parameters:
    """The vocabulary head and the token embedding are the same weights."""
    state = dims.n_text_state
    blocks = dims.n_text_layer * (4 + 2 + 8) * state**2  # self-attention, query and output of cross-attention, as above
    block_vectors = (3 * 2 + 3 + 2 + 5) * state
    others = dims.n_vocab * state + 2 * state + dims.n_text_layer * block_vectors
    return Parameters(blocks, others, dims.n_text_ctx * state)


def encoder_flops(dims: Dims, positions: int) -> Flops:
    """FLOP to encode one row of so many positions, cross-attention keys and values included."""
    first_convolution = 3 * dims.n_mels * dims.n_audio_state  # at twice as many frames as there are positions
    matrices = 2 * positions * (encoder_parameters(dims).matrices + (FRAMES_PER_POSITION - 1) * first_convolution)
    return Flops(matrices, 2 * 2 * dims.n_audio_layer * dims.n_audio_state * positions**2)


def decoder_flops(dims: Dims, *, positions: int, length: float) -> Flops:
    """FLOP to advance one row by a token that attends to `length` tokens, itself among them, and to all positions."""
    head = 2 * dims.n_vocab * dims.n_text_state
    attention = 2 * 2 * dims.n_text_layer * dims.n_text_state * (length + positions)
    return Flops(2 * decoder_parameters(dims).matrices, head + round(attention))


def key_value_bytes(dims: Dims, formats: NumberFormats, *, positions: int, length: float) -> float:
    """Bytes of one row's keys and values: cross-attention's at every position, self-attention's of every token."""
    return 2 * dims.n_text_layer * dims.n_text_state * (positions + length) * formats.kv_bytes


def encoder_bytes(dims: Dims, formats: NumberFormats, *, batch: int, positions: int) -> float:
    """Bytes that encoding a batch moves: weights, log-mel, and the cross-attention keys and values that come out."""
    log_mel = dims.n_mels * FRAMES_PER_POSITION * positions * formats.other_bytes
    cross = key_value_bytes(dims, formats, positions=positions, length=0)
    return encoder_parameters(dims).read_bytes(formats) + batch * (log_mel + cross)


def decoder_step_bytes(dims: Dims, formats: NumberFormats, *, batch: int, positions: int, length: float) -> float:
    """Bytes that one step of a batch moves: weights once, keys and values of every row."""
    rows = batch * key_value_bytes(dims, formats, positions=positions, length=length)
    return decoder_parameters(dims).read_bytes(formats) + rows


def mean_length(tokens: int) -> float:
    """Tokens that a step attends to on average, itself among them, while decoding so many after the prompt."""
    return PREFIX_TOKENS + (tokens - 1) / 2


@dataclass(frozen=True)
class Stage:
    """The least time of one pass of a batch through a network."""

    compute_s: float
    memory_s: float

    @property
    def seconds(self) -> float:
        return max(self.compute_s, self.memory_s)

    @property
    def bound(self) -> Literal["compute", "memory"]:
        return "compute" if self.compute_s > self.memory_s else "memory"

    @classmethod
    def on(cls, device: Device, formats: NumberFormats, flops: Flops, moved_bytes: float) -> Stage:
        matrices_s = flops.matrices / device.peaks[formats.matrix_arithmetic]
        others_s = flops.others / device.peaks[formats.other_arithmetic]
        return cls(matrices_s + others_s, moved_bytes / device.bandwidth)


@dataclass(frozen=True)
class Floor:
    """The least time and memory of a batch. step: one decoder step at mean length; weight_bytes: of both networks;
    kv_bytes: of all rows when they end."""

    batch: int
    tokens: int
    encoder: Stage
    step: Stage
    weight_bytes: float
    kv_bytes: float

    @property
    def seconds(self) -> float:
        """From the first byte of the batch to the last token of it."""
        return self.encoder.seconds + self.tokens * self.step.seconds

    @property
    def row_ms(self) -> float:
        """The batch's time shared among its rows: what throughput is made of, not what one of them waits."""
        return 1000 * self.seconds / self.batch


def floor(dims: Dims, device: Device, formats: NumberFormats, *, batch: int, positions: int, tokens: int) -> Floor:
    """The roofline of a batch of equal rows.

    positions: encoder positions of a row, 50 a second; tokens: decoded for a row, its end included, the prompt not.

    Raises:
        ValueError: there are no rows, or they are longer than the model's contexts.
    """
    if batch < 1:
        raise ValueError(f"a batch has at least 1 row, not {batch}")
    for what, value, most in (
        ("positions", positions, dims.n_audio_ctx),
        ("tokens", tokens, dims.n_text_ctx - PREFIX_TOKENS),
    ):
        if not 1 <= value <= most:
            raise ValueError(f"a row of this model has 1 to {most} {what}, not {value}")
    length = mean_length(tokens)
    rows = {"batch": batch, "positions": positions}
    encoding = encoder_flops(dims, positions).times(batch)
    stepping = decoder_flops(dims, positions=positions, length=length).times(batch)
    return Floor(
        batch=batch,
        tokens=tokens,
        encoder=Stage.on(device, formats, encoding, encoder_bytes(dims, formats, **rows)),
        step=Stage.on(device, formats, stepping, decoder_step_bytes(dims, formats, **rows, length=length)),
        weight_bytes=encoder_parameters(dims).stored_bytes(formats) + decoder_parameters(dims).stored_bytes(formats),
        kv_bytes=batch * key_value_bytes(dims, formats, positions=positions, length=PREFIX_TOKENS + tokens),
    )
