"""Every format gives back the weights, sizes and vocabulary that went in."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from whisper.model import ModelDimensions, Whisper

import asr.checkpoint.openai
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.errors import CheckpointError
from asr.model import Dims, decoder_input_names
from tests.asr.reference import LoadedModel, transformers_model
from tests.asr.writers import (
    Variables,
    ctranslate2_variables,
    quantized,
    write_ctranslate2,
    write_huggingface,
    write_openai,
    write_vocabulary,
)


def assert_same_weights(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == torch.float32, name
        assert torch.equal(actual[name], value), name


def assert_read_back(
    checkpoint: Checkpoint, dims: Dims, weights: Mapping[str, Tensor], vocabulary: Sequence[bytes]
) -> None:
    assert checkpoint.dims == dims
    assert list(checkpoint.vocabulary) == list(vocabulary)
    assert_same_weights(checkpoint.read_weights(), weights)


def test_openai(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor], small_vocabulary: Sequence[bytes]
) -> None:
    write_openai(tmp_path / "small.pt", small_dims, small_weights)
    checkpoint = load_checkpoint(tmp_path / "small.pt")

    assert_read_back(checkpoint, small_dims, small_weights, small_vocabulary)
    assert checkpoint.name == "small"


def test_huggingface(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor], small_vocabulary: Sequence[bytes]
) -> None:
    write_huggingface(tmp_path / "small", small_dims, small_weights, small_vocabulary)
    checkpoint = load_checkpoint(str(tmp_path / "small"))

    assert_read_back(checkpoint, small_dims, small_weights, small_vocabulary)
    assert checkpoint.name == "small"


def test_huggingface_in_shards(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor], small_vocabulary: Sequence[bytes]
) -> None:
    write_huggingface(tmp_path, small_dims, small_weights, small_vocabulary, max_shard_size="20KB")
    checkpoint = load_checkpoint(tmp_path)

    assert len(checkpoint.files) > 2
    assert_read_back(checkpoint, small_dims, small_weights, small_vocabulary)


def test_huggingface_in_half_precision(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor], small_vocabulary: Sequence[bytes]
) -> None:
    halves = {name: value.half() for name, value in small_weights.items()}
    write_huggingface(tmp_path, small_dims, halves, small_vocabulary)

    assert_same_weights(
        load_checkpoint(tmp_path).read_weights(), {name: value.float() for name, value in halves.items()}
    )


def test_ctranslate2(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor], small_vocabulary: Sequence[bytes]
) -> None:
    write_ctranslate2(tmp_path / "small", ctranslate2_variables(small_dims, small_weights), small_vocabulary)
    checkpoint = load_checkpoint(tmp_path / "small")

    assert_read_back(checkpoint, small_dims, small_weights, small_vocabulary)
    assert checkpoint.name == "small"


def as_float16(variables: Variables) -> Variables:
    return {name: value.astype(np.float16) if value.dtype == np.float32 else value for name, value in variables.items()}


def as_bfloat16(variables: Variables) -> Variables:
    """The upper halves of the float32 numbers, as bits."""
    return {
        name: (value.view(np.uint32) >> 16).astype(np.uint16) if value.dtype == np.float32 else value
        for name, value in variables.items()
    }


@pytest.mark.parametrize(("convert", "error"), [(as_float16, 2**-11), (as_bfloat16, 2**-7)])
def test_ctranslate2_in_half_precision(
    tmp_path: Path,
    small_dims: Dims,
    small_weights: Mapping[str, Tensor],
    small_vocabulary: Sequence[bytes],
    convert: Any,
    error: float,
) -> None:
    write_ctranslate2(tmp_path, convert(ctranslate2_variables(small_dims, small_weights)), small_vocabulary)
    weights = load_checkpoint(tmp_path).read_weights()

    assert weights.keys() == small_weights.keys()
    for name, value in small_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=error, atol=1e-7)


@pytest.mark.parametrize(("kind", "levels"), [(np.int8, 127), (np.int16, 1024)])
def test_ctranslate2_in_integers(
    tmp_path: Path,
    small_dims: Dims,
    small_weights: Mapping[str, Tensor],
    small_vocabulary: Sequence[bytes],
    kind: type[np.generic],
    levels: int,
) -> None:
    """Each weight is off by half a level at most, of the largest weight that it shares its scale with."""
    variables = ctranslate2_variables(small_dims, small_weights)
    write_ctranslate2(tmp_path, quantized(variables, kind), small_vocabulary)
    fused_largest = max(float(np.abs(value).max()) for name, value in variables.items() if name.endswith("/weight"))
    weights = load_checkpoint(tmp_path).read_weights()

    assert weights.keys() == small_weights.keys()
    for name, value in small_weights.items():
        if not name.endswith(".weight") or value.ndim == 1:
            assert torch.equal(weights[name], value), name
        elif kind is np.int8:
            largest = value.flatten(1).abs().amax(1)
            assert torch.all((weights[name] - value).flatten(1).abs() <= (0.501 / levels) * largest[:, None]), name
            torch.testing.assert_close(weights[name].flatten(1).abs().amax(1), largest)
        else:
            assert torch.all((weights[name] - value).abs() <= (0.501 / levels) * fused_largest), name


def test_a_read_back_network_computes_what_openais_does(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor], small_vocabulary: Sequence[bytes]
) -> None:
    """The encoder and decoder of a model with 80 or 128 mels, through a file, against openai-whisper's network."""
    write_ctranslate2(tmp_path, ctranslate2_variables(small_dims, small_weights), small_vocabulary)
    encoder, decoder = load_checkpoint(tmp_path).modules()
    reference = Whisper(ModelDimensions(**dataclasses.asdict(small_dims)))
    reference.load_state_dict(dict(small_weights))
    generator = torch.Generator().manual_seed(0)
    mel = torch.randn(2, small_dims.n_mels, 2 * small_dims.n_audio_ctx, generator=generator)
    tokens = torch.tensor([[small_dims.n_vocab - 1, 7, 300], [50_000, 0, 1]])

    position_ids = torch.arange(small_dims.n_audio_ctx).repeat(2, 1)
    whole_window = torch.zeros(2, small_dims.n_audio_ctx)
    cross = encoder(mel, torch.full((2,), mel.shape[-1]), position_ids, whole_window)
    empty = torch.zeros(2, small_dims.n_text_head, 2, small_dims.head_dim)
    every_step = torch.arange(3).expand(2, 3)
    past = torch.zeros(2, dtype=torch.int64)
    logits, new_kv = decoder(tokens, past, every_step, whole_window, *[empty] * (2 * small_dims.n_text_layer), *cross)

    torch.testing.assert_close(logits, reference(mel, tokens), rtol=1e-4, atol=1e-4)
    assert new_kv.shape == (small_dims.n_text_layer, 2, 2, small_dims.n_text_head, 3, small_dims.head_dim)
    assert len(decoder_input_names(small_dims)) == 4 + 4 * small_dims.n_text_layer


def test_weights_of_another_shape_do_not_fit(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor]
) -> None:
    write_openai(tmp_path / "odd.pt", dataclasses.replace(small_dims, n_text_ctx=11), small_weights)

    with pytest.raises(CheckpointError, match=r"(?s)odd\.pt: .*positional_embedding"):
        load_checkpoint(tmp_path / "odd.pt").modules()


def test_sha256_is_of_the_files_in_order(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor], small_vocabulary: Sequence[bytes]
) -> None:
    write_huggingface(tmp_path, small_dims, small_weights, small_vocabulary, max_shard_size="20KB")
    content = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("*.safetensors")))

    assert load_checkpoint(tmp_path).sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("max_shard_size", ["5GB", "20MB"])
def test_real_weights_through_huggingface(tmp_path: Path, tiny_en: LoadedModel, max_shard_size: str) -> None:
    transformers_model(tiny_en.dims, tiny_en.weights).save_pretrained(tmp_path, max_shard_size=max_shard_size)
    write_vocabulary(tmp_path / "tokenizer.json", tiny_en.checkpoint.vocabulary)

    assert_read_back(load_checkpoint(tmp_path), tiny_en.dims, tiny_en.weights, tiny_en.checkpoint.vocabulary)


def test_real_weights_through_openai(tmp_path: Path, tiny_en: LoadedModel) -> None:
    write_openai(tmp_path / "tiny.en.pt", tiny_en.dims, tiny_en.weights)
    checkpoint = load_checkpoint(tmp_path / "tiny.en.pt")

    assert_read_back(checkpoint, tiny_en.dims, tiny_en.weights, tiny_en.checkpoint.vocabulary)
    assert checkpoint.name == "tiny.en"


@pytest.mark.parametrize("without_whisper_package", [False, True])
def test_openai_vocabulary_of_an_installed_package(
    tmp_path: Path,
    small_dims: Dims,
    small_weights: Mapping[str, Tensor],
    small_vocabulary: Sequence[bytes],
    base: LoadedModel,
    tiny_en: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    *,
    without_whisper_package: bool,
) -> None:
    if without_whisper_package:
        monkeypatch.setattr(asr.checkpoint.openai, "published_vocabulary", lambda n_vocab: None)
    write_openai(tmp_path / "small.pt", small_dims, small_weights)

    assert list(load_checkpoint(tmp_path / "small.pt").vocabulary) == list(small_vocabulary)


def test_openai_vocabulary_beside_the_file_comes_first(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor], small_vocabulary: Sequence[bytes]
) -> None:
    swapped = [small_vocabulary[1], small_vocabulary[0], *small_vocabulary[2:]]
    write_openai(tmp_path / "small.pt", small_dims, small_weights)
    write_vocabulary(tmp_path / "vocab.json", swapped)

    assert list(load_checkpoint(tmp_path / "small.pt").vocabulary) == swapped


def test_huggingface_config_is_what_sizes_come_from(
    tmp_path: Path, small_dims: Dims, small_weights: Mapping[str, Tensor], small_vocabulary: Sequence[bytes]
) -> None:
    write_huggingface(tmp_path, small_dims, small_weights, small_vocabulary)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["num_mel_bins"]
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(CheckpointError, match=r"config\.json: lacks 'num_mel_bins'"):
        load_checkpoint(tmp_path)
