"""CTranslate2 Whisper directories (`model.bin`), the format of the faster-whisper models.

Layout of `model.bin`, binary version 6, little endian (CTranslate2, python/ctranslate2/specs/model_spec.py): u32
version, string name, u32 revision, u32 count, then for each variable its string name, u8 rank, u32 dims, u8 data type,
u32 bytes, data; then u32 aliases and pairs of strings. A string is its u16 length and bytes that end in NUL. Query, key
and value of self-attention are fused in `linear_0`, key and value of cross-attention in `linear_1`. Integer weights
carry a `weight_scale` that they are divided by.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from asr.checkpoint.normalised import Checkpoint, Weights
from asr.checkpoint.vocabulary import read_vocabulary
from asr.errors import CheckpointError, UnsupportedArchitectureError
from asr.model import Dims

BINARY_VERSION = 6
DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2", 5: "<u2"}  # 5 is bfloat16, which NumPy lacks
BFLOAT16 = 5


@dataclass(frozen=True)
class Variable:
    shape: tuple[int, ...]
    data_type: int
    data: memoryview

    def tensor(self) -> torch.Tensor:
        array = np.frombuffer(self.data, DTYPES[self.data_type]).reshape(self.shape)
        if self.data_type == BFLOAT16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return torch.from_numpy(array.astype(np.float32))  # a copy: the file may be unmapped

    def scalar(self) -> int:
        return int(np.frombuffer(self.data, DTYPES[self.data_type])[0])


def read_ctranslate2(directory: Path, *, name: str | None = None, parts: Sequence[Path] = ()) -> Checkpoint:
    """Open a CTranslate2 Whisper directory; `parts` are the pieces of `model.bin` where it comes in several."""
    files = list(parts) or [directory / "model.bin"]
    variables = _read_variables(files)
    dims = _dims(variables, files[0])
    return Checkpoint(
        name=name or directory.name,
        files=files,
        dims=dims,
        vocabulary=read_vocabulary(directory, dims.n_vocab),
        read_weights=lambda: _read_weights(variables, dims, files[0]),
    )


def _read_variables(files: Sequence[Path]) -> dict[str, Variable]:
    path = str(files[0])
    try:
        reader = _Reader(_content(files))
        version = reader.number("I")
        if version != BINARY_VERSION:
            raise UnsupportedArchitectureError(path, f"is no CTranslate2 model of binary version {BINARY_VERSION}")
        architecture = reader.string()
        if architecture != "WhisperSpec":
            raise UnsupportedArchitectureError(path, f"holds a {architecture}, not a Whisper model")
        reader.number("I")  # revision of the specification
        variables = dict(reader.variable() for _ in range(reader.number("I")))
        for _ in range(reader.number("I")):  # aliases, which Whisper uses for the tied vocabulary head only
            reader.string(), reader.string()
    except (struct.error, ValueError, UnicodeDecodeError, OSError, KeyError) as error:
        raise CheckpointError(path, f"is truncated or damaged ({error})") from error
    return variables


def _content(files: Sequence[Path]) -> memoryview:
    if len(files) > 1:
        return memoryview(b"".join(path.read_bytes() for path in files))
    with files[0].open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class _Reader:
    def __init__(self, content: memoryview) -> None:
        self.content = content
        self.offset = 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize(code)))
        return int(value)

    def take(self, size: int) -> memoryview:
        data = self.content[self.offset : self.offset + size]
        if len(data) < size:
            raise ValueError(f"ends at byte {len(self.content)}, expected {size} bytes at {self.offset}")
        self.offset += size
        return data

    def string(self) -> str:
        return bytes(self.take(self.number("H"))).rstrip(b"\0").decode()

    def variable(self) -> tuple[str, Variable]:
        name = self.string()
        shape = tuple(self.number("I") for _ in range(self.number("B")))
        data_type = self.number("B")
        data = self.take(self.number("I"))
        if np.dtype(DTYPES[data_type]).itemsize * int(np.prod(shape)) != len(data):
            raise ValueError(f"variable {name} of shape {shape} has {len(data)} bytes")
        return name, Variable(shape, data_type, data)


def _dims(variables: Mapping[str, Variable], path: Path) -> Dims:
    def layers(part: str) -> int:
        return len(
            {name.split("/")[1] for name in variables if name.startswith(f"{part}/layer_") and name.count("/") > 2}
        )

    try:
        n_vocab, n_text_state = variables["decoder/embeddings/weight"].shape
        n_audio_state, n_mels, _ = variables["encoder/conv1/weight"].shape
        return Dims(
            n_mels=n_mels,
            n_audio_ctx=variables["encoder/position_encodings/encodings"].shape[0],
            n_audio_state=n_audio_state,
            n_audio_head=variables["encoder/num_heads"].scalar(),
            n_audio_layer=layers("encoder"),
            n_vocab=n_vocab,
            n_text_ctx=variables["decoder/position_encodings/encodings"].shape[0],
            n_text_state=n_text_state,
            n_text_head=variables["decoder/num_heads"].scalar(),
            n_text_layer=layers("decoder"),
        )
    except KeyError as error:
        raise CheckpointError(str(path), f"lacks the variable {error}") from error
    except (ValueError, IndexError) as error:
        raise CheckpointError(str(path), f"has a variable of another shape ({error})") from error


def _read_weights(variables: Mapping[str, Variable], dims: Dims, path: Path) -> Weights:
    try:
        return _normalise(variables, dims)
    except KeyError as error:
        raise CheckpointError(str(path), f"lacks the variable {error}") from error
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(str(path), f"has a variable of another shape ({error})") from error


def _normalise(variables: Mapping[str, Variable], dims: Dims) -> Weights:
    def weight(name: str) -> torch.Tensor:
        tensor = variables[name].tensor()
        scale = variables.get(f"{name}_scale")
        if scale is not None:  # integer weights: one scale a row, or one for all
            scales = scale.tensor()
            tensor = tensor / scales.reshape(scales.shape + (1,) * (tensor.ndim - scales.ndim))
        return tensor

    weights: Weights = {
        "encoder.conv1.weight": weight("encoder/conv1/weight"),
        "encoder.conv1.bias": weight("encoder/conv1/bias"),
        "encoder.conv2.weight": weight("encoder/conv2/weight"),
        "encoder.conv2.bias": weight("encoder/conv2/bias"),
        "encoder.positional_embedding": weight("encoder/position_encodings/encodings"),
        "decoder.positional_embedding": weight("decoder/position_encodings/encodings"),
        "decoder.token_embedding.weight": weight("decoder/embeddings/weight"),
    }

    def norm(target: str, source: str) -> None:
        weights[f"{target}.weight"] = weight(f"{source}/gamma")
        weights[f"{target}.bias"] = weight(f"{source}/beta")

    def linear(targets: Sequence[str], source: str) -> None:
        """Split a fused projection into the named parts, in order; Whisper's keys have no bias."""
        parts = weight(f"{source}/weight").chunk(len(targets))
        biases = weight(f"{source}/bias").chunk(len(targets))
        for target, part, bias in zip(targets, parts, biases, strict=True):
            weights[f"{target}.weight"] = part
            if not target.endswith(".key"):
                weights[f"{target}.bias"] = bias

    def block(target: str, source: str) -> None:
        norm(f"{target}.attn_ln", f"{source}/self_attention/layer_norm")
        linear([f"{target}.attn.{part}" for part in ("query", "key", "value")], f"{source}/self_attention/linear_0")
        linear([f"{target}.attn.out"], f"{source}/self_attention/linear_1")
        norm(f"{target}.mlp_ln", f"{source}/ffn/layer_norm")
        linear([f"{target}.mlp.0"], f"{source}/ffn/linear_0")
        linear([f"{target}.mlp.2"], f"{source}/ffn/linear_1")

    for layer in range(dims.n_audio_layer):
        block(f"encoder.blocks.{layer}", f"encoder/layer_{layer}")
    norm("encoder.ln_post", "encoder/layer_norm")
    for layer in range(dims.n_text_layer):
        target, source = f"decoder.blocks.{layer}", f"decoder/layer_{layer}"
        block(target, source)
        norm(f"{target}.cross_attn_ln", f"{source}/attention/layer_norm")
        linear([f"{target}.cross_attn.query"], f"{source}/attention/linear_0")
        linear([f"{target}.cross_attn.key", f"{target}.cross_attn.value"], f"{source}/attention/linear_1")
        linear([f"{target}.cross_attn.out"], f"{source}/attention/linear_2")
    norm("decoder.ln", "decoder/layer_norm")
    return weights
