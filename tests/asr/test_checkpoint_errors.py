"""A checkpoint that cannot be used says so when it is opened or read, and names the file."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import asr.checkpoint.embedded
import asr.checkpoint.openai
from asr.checkpoint import load_checkpoint
from asr.errors import CheckpointError, CheckpointNotFoundError, UnsupportedArchitectureError
from asr.model import Dims
from tests.asr.conftest import SMALL_DIMS
from tests.asr.reference import random_weights
from tests.asr.writers import (
    Variables,
    ctranslate2_variables,
    model_bin,
    write_ctranslate2,
    write_huggingface,
    write_openai,
)


@dataclass(frozen=True)
class Small:
    """What a sound small checkpoint is written from."""

    dims: Dims
    weights: Mapping[str, Tensor]
    vocabulary: Sequence[bytes]
    variables: Variables


@pytest.fixture(scope="module")
def small() -> Small:
    dims = SMALL_DIMS["tiny.en-like"]
    weights = random_weights(dims)
    vocabulary = [b"\0\0%d" % index for index in range(50_256)]  # never encoded with, so any will do
    return Small(dims, weights, vocabulary, ctranslate2_variables(dims, weights))


def open_and_read(path: Path) -> None:
    load_checkpoint(path).modules()


def assert_refused(path: Path, named: Path, kind: type[CheckpointError] = CheckpointError) -> None:
    """Reading `path` fails with an error of exactly this kind, and the message begins with the file at fault."""
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(named))}: ") as caught:
        open_and_read(path)
    assert type(caught.value) is kind


def assert_refused_for_its_vocabulary(path: Path, n_vocab: int) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=f"^{re.escape(str(path))}.*{n_vocab}"):
        open_and_read(path)


# --- CTranslate2


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 5, 9, 17, 21, 25, 40, 100, 0.1, 0.5, 0.999])
def test_truncated_model_bin(tmp_path: Path, small: Small, kept: float) -> None:
    write_ctranslate2(tmp_path, small.variables, small.vocabulary)
    path = tmp_path / "model.bin"
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])

    assert_refused(tmp_path, path)


@pytest.mark.parametrize("missing", [1, 2, 30, 57, 60, 61, 62])
def test_model_bin_without_its_last_bytes(tmp_path: Path, small: Small, missing: int) -> None:
    """The end holds the aliases: nothing that is used, but a file that ends there was not copied to its end."""
    write_ctranslate2(tmp_path, small.variables, small.vocabulary)
    path = tmp_path / "model.bin"
    path.write_bytes(path.read_bytes()[:-missing])

    assert_refused(tmp_path, path)


@pytest.mark.parametrize(
    "content",
    [
        model_bin({}, version=5),
        model_bin({}, "TransformerSpec"),
        b"\x89PNG\r\n\x1a\n" + bytes(100),
    ],
    ids=["older version", "another architecture", "another format"],
)
def test_model_bin_of_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.bin").write_bytes(content)

    assert_refused(tmp_path, tmp_path / "model.bin", UnsupportedArchitectureError)


@pytest.mark.parametrize(
    "name",
    [
        "encoder/num_heads",
        "encoder/conv1/weight",
        "encoder/conv1/bias",
        "decoder/embeddings/weight",
        "decoder/layer_1/attention/linear_1/weight",
        "decoder/layer_norm/gamma",
    ],
)
def test_model_bin_without_a_variable(tmp_path: Path, small: Small, name: str) -> None:
    variables = {key: value for key, value in small.variables.items() if key != name}
    write_ctranslate2(tmp_path, variables, small.vocabulary)

    assert_refused(tmp_path, tmp_path / "model.bin")


@pytest.mark.parametrize("name", ["encoder/conv1/weight", "decoder/embeddings/weight", "encoder/num_heads"])
def test_model_bin_with_a_variable_of_another_rank(tmp_path: Path, small: Small, name: str) -> None:
    variables = {**small.variables, name: np.zeros((0,), np.float32)}
    write_ctranslate2(tmp_path, variables, small.vocabulary)

    assert_refused(tmp_path, tmp_path / "model.bin")


def test_model_bin_with_another_vocabulary_size(tmp_path: Path, small: Small) -> None:
    variables = {**small.variables, "decoder/embeddings/weight": np.zeros((30_000, 16), np.float32)}
    write_ctranslate2(tmp_path, variables, small.vocabulary)

    assert_refused_for_its_vocabulary(tmp_path, 30_000)


# --- Hugging Face


def edit_config(directory: Path, change: Callable[[dict[str, object]], object]) -> None:
    config = json.loads((directory / "config.json").read_text())
    change(config)
    (directory / "config.json").write_text(json.dumps(config))


def test_config_of_another_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')

    assert_refused(tmp_path, tmp_path / "config.json", UnsupportedArchitectureError)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00", "\xff"])
def test_malformed_config(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))

    assert_refused(tmp_path, tmp_path / "config.json")


def test_config_without_a_size(tmp_path: Path, small: Small) -> None:
    write_huggingface(tmp_path, small.dims, small.weights, small.vocabulary)
    edit_config(tmp_path, lambda config: config.pop("encoder_layers"))

    assert_refused(tmp_path, tmp_path / "config.json")


@pytest.mark.parametrize("kept", [0, 4, 8, 200, 0.5, 0.999])
def test_truncated_safetensors(tmp_path: Path, small: Small, kept: float) -> None:
    write_huggingface(tmp_path, small.dims, small.weights, small.vocabulary)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])

    assert_refused(tmp_path, path)


def test_no_safetensors(tmp_path: Path, small: Small) -> None:
    write_huggingface(tmp_path, small.dims, small.weights, small.vocabulary)
    (tmp_path / "model.safetensors").unlink()

    assert_refused(tmp_path, tmp_path)


def test_missing_shard(tmp_path: Path, small: Small) -> None:
    write_huggingface(tmp_path, small.dims, small.weights, small.vocabulary, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()

    assert_refused(tmp_path, shard)


def test_weights_that_are_not_in_the_shards(tmp_path: Path, small: Small) -> None:
    write_huggingface(tmp_path, small.dims, small.weights, small.vocabulary, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    content = json.loads(index.read_text())
    content["weight_map"] = {name: file for name, file in content["weight_map"].items() if file == shards[0].name}
    index.write_text(json.dumps(content))

    assert_refused(tmp_path, shards[0])


# --- OpenAI


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.999])
def test_truncated_pt(tmp_path: Path, small: Small, kept: float) -> None:
    path = tmp_path / "small.pt"
    write_openai(path, small.dims, small.weights)
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])

    assert_refused(path, path)


@pytest.mark.parametrize(
    "content",
    [
        {"model_state_dict": {}},
        {"dims": {"n_mels": 80}, "model_state_dict": {}},
        {"dims": {"n_mels": 80, "n_speakers": 2}, "model_state_dict": {}},
        {"state_dict": {"weight": torch.zeros(1)}},
        [torch.zeros(1)],
        torch.zeros(1),
    ],
    ids=["no dims", "dims too few", "dims of another model", "another model", "a list", "a tensor"],
)
def test_pt_of_something_else(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pt")

    assert_refused(tmp_path / "other.pt", tmp_path / "other.pt", UnsupportedArchitectureError)


def test_pt_with_another_vocabulary_size(tmp_path: Path, small: Small) -> None:
    write_openai(tmp_path / "small.pt", dataclasses.replace(small.dims, n_vocab=30_000), small.weights)

    assert_refused_for_its_vocabulary(tmp_path / "small.pt", 30_000)


def test_pt_that_would_run_code_is_not_run(tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "touched",)

    torch.save({"dims": Malicious()}, tmp_path / "evil.pt")

    assert_refused(tmp_path / "evil.pt", tmp_path / "evil.pt")
    assert not (tmp_path / "touched").exists()


def test_pt_without_a_parameter(tmp_path: Path, small: Small) -> None:
    weights = {name: value for name, value in small.weights.items() if name != "decoder.blocks.1.mlp.0.weight"}
    write_openai(tmp_path / "small.pt", small.dims, weights)

    assert_refused(tmp_path / "small.pt", tmp_path / "small.pt")


def test_pt_that_no_vocabulary_is_found_for(tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asr.checkpoint.openai, "published_vocabulary", lambda n_vocab: None)
    monkeypatch.setattr(asr.checkpoint.embedded, "MODELS", {})
    write_openai(tmp_path / "small.pt", small.dims, small.weights)

    assert_refused(tmp_path / "small.pt", tmp_path / "small.pt")


# --- vocabularies and whole directories


def test_no_vocabulary(tmp_path: Path, small: Small) -> None:
    write_ctranslate2(tmp_path, small.variables, small.vocabulary)
    (tmp_path / "vocabulary.json").unlink()

    assert_refused(tmp_path, tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"7", b'["a", "b"]', b"[1, 2]", b"\xff\xfe"])
def test_malformed_vocabulary(tmp_path: Path, small: Small, content: bytes) -> None:
    write_ctranslate2(tmp_path, small.variables, small.vocabulary)
    (tmp_path / "vocabulary.json").write_bytes(content)

    assert_refused(tmp_path, tmp_path / "vocabulary.json")


def test_a_directory_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Nothing here.")

    assert_refused(tmp_path, tmp_path, UnsupportedArchitectureError)


@pytest.mark.parametrize("name", ["absent", "absent.pt", "deep/er/absent"])
def test_no_such_path(tmp_path: Path, name: str) -> None:
    assert_refused(tmp_path / name, tmp_path / name, CheckpointNotFoundError)


@pytest.mark.parametrize("reference", ["./absent", "~/absent", "absent.pt", "some/where/absent"])
def test_what_looks_like_a_path_is_not_sought_on_the_hub(reference: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match=f"^{re.escape(reference)}: no such file"):
        load_checkpoint(reference)
