"""Weights out of installed packages and out of the hub's cache."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub.constants
import pytest

from asr.checkpoint import embedded, load_checkpoint
from asr.checkpoint.embedded import EmbeddedModel
from asr.errors import CheckpointError, CheckpointNotFoundError, ChecksumMismatchError
from tests.asr.conftest import SMALL_DIMS
from tests.asr.reference import LoadedModel, random_weights
from tests.asr.writers import ctranslate2_variables, model_bin, write_ctranslate2, write_vocabulary

DIMS = SMALL_DIMS["tiny.en-like"]
VOCABULARY = [b"\0\0%d" % index for index in range(50_256)]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[Path]:
    """Packages that carry a small model in two parts and cannot be imported; → the parts."""
    content = model_bin(ctranslate2_variables(DIMS, random_weights(DIMS)))
    parts = []
    for number, piece in enumerate((content[:5000], content[5000:]), start=1):
        directory = tmp_path / f"carries_weights_part{number}"
        (directory / "data").mkdir(parents=True)
        (directory / "__init__.py").write_text("raise RuntimeError('imported')")
        parts.append(directory / "data" / f"model.bin.part{number}")
        parts[-1].write_bytes(piece)
    write_vocabulary(parts[0].parent / "vocabulary.txt", VOCABULARY)
    weights = [(part.parents[1].name, f"data/{part.name}") for part in parts]
    model = EmbeddedModel(DIMS.n_vocab, weights, hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(embedded.MODELS, "carried", model)
    monkeypatch.syspath_prepend(tmp_path)
    return parts


def test_a_model_in_two_packages_is_joined_and_none_is_imported(package: Sequence[Path]) -> None:
    checkpoint = load_checkpoint("carried")

    assert checkpoint.name == "carried"
    assert checkpoint.dims == DIMS
    assert checkpoint.sha256 == embedded.MODELS["carried"].sha256
    checkpoint.modules()
    assert not [name for name in sys.modules if name.startswith("carries_weights")]


def test_one_wrong_bit_is_found(package: Sequence[Path]) -> None:
    content = bytearray(package[1].read_bytes())
    content[-200] ^= 1
    package[1].write_bytes(content)

    with pytest.raises(ChecksumMismatchError, match=re.escape(package[1].name)) as caught:
        load_checkpoint("carried")
    assert embedded.MODELS["carried"].sha256 in str(caught.value)


def test_a_truncated_part_is_found(package: Sequence[Path]) -> None:
    package[0].write_bytes(package[0].read_bytes()[:-1])

    with pytest.raises(ChecksumMismatchError, match=re.escape(str(package[0]))):
        load_checkpoint("carried")


def test_a_missing_part_is_named(package: Sequence[Path]) -> None:
    package[1].unlink()

    with pytest.raises(CheckpointError, match=f"^{re.escape(str(package[1]))}: is missing"):
        load_checkpoint("carried")


def test_half_a_model_is_not_installed(package: Sequence[Path]) -> None:
    assert embedded.is_installed("carried")
    shutil.rmtree(package[1].parents[1])

    assert not embedded.is_installed("carried")


@pytest.mark.parametrize("name", embedded.MODELS)
def test_real_packages_are_not_imported(name: str, base: LoadedModel, tiny_en: LoadedModel) -> None:
    assert not {package for package, _ in embedded.MODELS[name].weights} & sys.modules.keys()


def test_sizes_of_the_real_models(base: LoadedModel, tiny_en: LoadedModel) -> None:
    assert (base.dims.n_vocab, base.dims.n_text_state, base.dims.n_text_layer) == (51_865, 512, 6)
    assert (tiny_en.dims.n_vocab, tiny_en.dims.n_text_state, tiny_en.dims.n_text_layer) == (51_864, 384, 4)


def test_a_directory_of_the_name_comes_before_the_package(
    package: Sequence[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_ctranslate2(Path("carried"), ctranslate2_variables(DIMS, random_weights(DIMS)), VOCABULARY)

    assert list(load_checkpoint("carried").files) == [Path("carried/model.bin")]


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "repository"), [("organisation/model", "organisation--model"), ("small", "openai--whisper-small")]
)
def test_a_model_out_of_the_hub_cache(hub_cache: Path, reference: str, repository: str) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    root = hub_cache / f"models--{repository}"
    write_ctranslate2(root / "snapshots" / commit, ctranslate2_variables(DIMS, random_weights(DIMS)), VOCABULARY)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)

    assert list(load_checkpoint(reference).files) == [root / "snapshots" / commit / "model.bin"]


@pytest.mark.parametrize("reference", ["organisation/absent", "absent", "no such model!", "-bad/name-", "a--b"])
def test_a_name_that_is_nowhere(hub_cache: Path, reference: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match=f"^{re.escape(reference)}: "):
        load_checkpoint(reference)


def test_a_name_that_is_nowhere_without_the_hub_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(CheckpointNotFoundError, match=r"^absent: .*rayscribe\[hub\]"):
        load_checkpoint("absent")
