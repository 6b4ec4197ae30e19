"""The command that builds graphs: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from asr.build.__main__ import main
from asr.build.artefacts import Artefacts
from tests.asr.artefact_caches import FP32, GRAPHS, directories


def test_the_command_prints_what_was_built(weights_file: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [directory] = directories(cache)
    mib = [f"{(directory / file).stat().st_size / 2**20:.1f}" for file in GRAPHS]

    assert main(["--model", str(weights_file), "--precision", "fp32", "--cache", str(cache)]) == 0
    printed, empty, *table = capsys.readouterr().out.splitlines()
    assert (printed, empty) == (str(directory), "")
    assert table[:2] == ["| graph | precision | products in int8 | MiB | built in |", "|---|---|---:|---:|---:|"]
    for row, start in zip(
        table[2:], (f"| encoder | fp32 | 0 of 8 | {mib[0]} |", f"| decoder | fp32 | 0 of 9 | {mib[1]} |"), strict=True
    ):
        assert re.fullmatch(re.escape(start) + r" \d+\.\d s \|", row)


def test_the_command_prints_the_manifest(weights_file: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [directory] = directories(cache)

    assert main(["--model", str(weights_file), "--precision", "fp32", "--output", str(cache), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == Artefacts(directory, FP32).manifest


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "./no such model.pt", "--cache", str(tmp_path)]) == 1

    out, error = capsys.readouterr()
    assert out == ""
    assert error == "error: ./no such model.pt: no such file or directory\n"
    assert list(tmp_path.iterdir()) == []


def test_the_command_knows_its_precisions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--precision", "int4"])

    assert caught.value.code == 2
    assert "int4" in capsys.readouterr().err
