"""The odd files of ../shared/formats, where they are, as parameters of a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FORMATS = Path(__file__).parents[2] / "shared" / "formats"
MANIFEST = FORMATS / "manifest.jsonl"
NO_FORMATS = pytest.param({}, id="absent", marks=pytest.mark.skip(reason=f"there is no {MANIFEST}"))
ENTRIES = (
    [pytest.param(entry, id=entry["file"]) for entry in map(json.loads, MANIFEST.read_text("utf-8").splitlines())]
    if MANIFEST.is_file()
    else [NO_FORMATS]
)
