"""Checkpoints of every format, written for tests from weights under OpenAI's names."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from asr.model import Dims
from tests.asr.reference import transformers_model

Variables = dict[str, NDArray[np.generic]]
"""CTranslate2's name → array of one of its types."""

SPELLING: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]

DATA_TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "uint16": 5}
"""CTranslate2's number of a type; bfloat16, which NumPy lacks, is written from its bits in uint16."""


def write_vocabulary(path: Path, tokens: Sequence[bytes]) -> None:
    """`tokens` by id, then a special token, in the format that the file's name stands for."""
    path.write_text(_vocabulary_file(path.name, tuple(tokens)), encoding="utf-8")


@cache
def _vocabulary_file(name: str, tokens: Sequence[bytes]) -> str:
    spelled = ["".join(SPELLING[byte] for byte in token) for token in tokens]
    spelled.append("<|startoftranscript|>")
    if name == "vocabulary.json":
        return json.dumps(spelled)
    if name == "vocabulary.txt":
        return "".join(f"{token}\n" for token in spelled)
    ids = {token: token_id for token_id, token in enumerate(spelled)}
    return json.dumps(ids if name == "vocab.json" else {"model": {"vocab": ids}})  # else tokenizer.json


def write_openai(path: Path, dims: Dims, weights: Mapping[str, Tensor]) -> None:
    torch.save({"dims": dataclasses.asdict(dims), "model_state_dict": dict(weights)}, path)


def write_huggingface(
    directory: Path, dims: Dims, weights: Mapping[str, Tensor], tokens: Sequence[bytes], max_shard_size: str = "5GB"
) -> None:
    transformers_model(dims, weights).save_pretrained(directory, max_shard_size=max_shard_size)
    write_vocabulary(directory / "vocab.json", tokens)


def write_ctranslate2(
    directory: Path, variables: Variables, tokens: Sequence[bytes], architecture: str = "WhisperSpec"
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.bin").write_bytes(model_bin(variables, architecture))
    write_vocabulary(directory / "vocabulary.json", tokens)


def model_bin(variables: Variables, architecture: str = "WhisperSpec", version: int = 6) -> bytes:
    content = bytearray(struct.pack("<I", version) + _string(architecture) + struct.pack("<II", 3, len(variables)))
    for name, value in variables.items():
        data = value.tobytes()
        content += _string(name) + struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
        content += struct.pack("<BI", DATA_TYPES[value.dtype.name], len(data)) + data
    alias = _string("decoder/projection/weight") + _string("decoder/embeddings/weight")
    return bytes(content + struct.pack("<I", 1) + alias)


def ctranslate2_variables(dims: Dims, weights: Mapping[str, Tensor]) -> Variables:
    """In float32, with projections fused as CTranslate2 does it."""
    variables: Variables = {
        "encoder/num_heads": np.array(dims.n_audio_head, np.int16),
        "decoder/num_heads": np.array(dims.n_text_head, np.int16),
        "encoder/position_encodings/encodings": weights["encoder.positional_embedding"].numpy(),
        "decoder/position_encodings/encodings": weights["decoder.positional_embedding"].numpy(),
        "decoder/embeddings/weight": weights["decoder.token_embedding.weight"].numpy(),
    }

    def norm(target: str, source: str) -> None:
        variables[f"{target}/gamma"] = weights[f"{source}.weight"].numpy()
        variables[f"{target}/beta"] = weights[f"{source}.bias"].numpy()

    def linear(target: str, *sources: str) -> None:
        parts = [weights[f"{source}.weight"] for source in sources]
        biases = [
            weights.get(f"{source}.bias", torch.zeros(len(part))) for source, part in zip(sources, parts, strict=True)
        ]
        variables[f"{target}/weight"] = torch.cat(parts).numpy()
        variables[f"{target}/bias"] = torch.cat(biases).numpy()

    for conv in ("conv1", "conv2"):
        linear(f"encoder/{conv}", f"encoder.{conv}")
    for part, layers in (("encoder", dims.n_audio_layer), ("decoder", dims.n_text_layer)):
        for layer in range(layers):
            target, source = f"{part}/layer_{layer}", f"{part}.blocks.{layer}"
            norm(f"{target}/self_attention/layer_norm", f"{source}.attn_ln")
            linear(
                f"{target}/self_attention/linear_0", *(f"{source}.attn.{name}" for name in ("query", "key", "value"))
            )
            linear(f"{target}/self_attention/linear_1", f"{source}.attn.out")
            norm(f"{target}/ffn/layer_norm", f"{source}.mlp_ln")
            linear(f"{target}/ffn/linear_0", f"{source}.mlp.0")
            linear(f"{target}/ffn/linear_1", f"{source}.mlp.2")
            if part == "decoder":
                norm(f"{target}/attention/layer_norm", f"{source}.cross_attn_ln")
                linear(f"{target}/attention/linear_0", f"{source}.cross_attn.query")
                linear(f"{target}/attention/linear_1", f"{source}.cross_attn.key", f"{source}.cross_attn.value")
                linear(f"{target}/attention/linear_2", f"{source}.cross_attn.out")
    norm("encoder/layer_norm", "encoder.ln_post")
    norm("decoder/layer_norm", "decoder.ln")
    return variables


def quantized(variables: Variables, kind: type[np.generic]) -> Variables:
    """Weights in int8 with a scale for each output channel, or in int16 with one for all, as CTranslate2 makes them."""
    result: Variables = {}
    for name, value in variables.items():
        if not name.endswith("/weight"):
            result[name] = value
            continue
        matrix = value.astype(np.float32).reshape(len(value), -1)
        largest = np.abs(matrix).max(axis=1)
        scale = 127 / largest if kind is np.int8 else np.array(1024 / largest.max(), np.float32)
        result[name] = np.rint(matrix * scale.reshape(-1, 1)).astype(kind).reshape(value.shape)
        result[f"{name}_scale"] = scale
    return result


def _string(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("<H", len(data)) + data
