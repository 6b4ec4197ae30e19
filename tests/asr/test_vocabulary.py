"""Vocabulary files of every format, against the two vocabularies that OpenAI published."""

from __future__ import annotations

from pathlib import Path

import pytest

from asr.checkpoint.vocabulary import READERS, published_vocabulary, read_vocabulary
from tests.asr.reference import LoadedModel
from tests.asr.writers import write_vocabulary


def published(n_vocab: int) -> list[bytes]:
    vocabulary = published_vocabulary(n_vocab)
    assert vocabulary is not None
    return vocabulary


@pytest.mark.parametrize(("n_vocab", "count"), [(51_864, 50_256), (51_865, 50_257), (51_866, 50_257)])
@pytest.mark.parametrize("name", READERS)
def test_every_format_gives_the_text_tokens(tmp_path: Path, name: str, n_vocab: int, count: int) -> None:
    write_vocabulary(tmp_path / name, published(n_vocab))

    assert read_vocabulary(tmp_path, n_vocab) == published(n_vocab)
    assert len(published(n_vocab)) == count


def test_the_two_vocabularies_differ() -> None:
    assert published(51_864) != published(51_865)[:50_256]
    assert published(51_865) == published(51_866)
    assert b"" in published(51_865)  # the last of the multilingual tokens is empty


def test_embedded_models_use_the_published_vocabularies(base: LoadedModel, tiny_en: LoadedModel) -> None:
    assert list(base.checkpoint.vocabulary) == published(51_865)
    assert list(tiny_en.checkpoint.vocabulary) == published(51_864)
