"""Odd files, each with the answer that is right."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.scoring import score_units, units
from tests.audio_files import wav
from tests.odd_formats import ENTRIES, FORMATS

pytestmark = pytest.mark.e2e

MOST_ERRORS = 0.25
"""Of the units of the text; the narrow-band codecs cost a word."""


def transcribe(client: httpx.Client, name: str, content: bytes) -> httpx.Response:
    return client.post("/v1/audio/transcriptions", files={"file": (name, content)}, data={"model": "base"})


def test_a_file_without_a_sample(client: httpx.Client) -> None:
    response = transcribe(client, "empty.wav", wav(np.zeros(0, np.float32)))
    assert (response.status_code, response.json()) == (200, {"text": ""})


@pytest.mark.parametrize("entry", ENTRIES)
def test_odd_files(client: httpx.Client, entry: dict[str, Any]) -> None:
    expect = entry["expect"]
    response = transcribe(client, entry["file"], (FORMATS / entry["file"]).read_bytes())
    if response.status_code != 200:
        assert 400 <= response.status_code < 500
        assert "4xx" in expect
        assert response.json()["error"]["message"].startswith("The file cannot be transcribed: ")
        return
    text = response.json()["text"]
    if expect == "empty":
        assert text == ""
    elif expect.startswith("empty"):
        assert len(text.split()) <= 1
    else:
        assert expect.startswith("text")
        said, heard = (units(spoken, entry["language"]) for spoken in (entry["text"], text))
        if expect.startswith("text_prefix"):
            assert len(heard) > 1
            said = said[: len(heard)]
        assert score_units(said, heard).rate <= MOST_ERRORS
