"""The command that prints the lower bounds of Whisper's time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import asr.floors
from asr.devices import GPUS
from asr.floors import main
from asr.roofline import PRECISIONS, floor
from tests.asr.odd_dims import ODD_DIMS
from tests.asr.reference import random_weights
from tests.asr.writers import write_openai

RUN = {"gpu": "t4", "model": "small", "precision": "fp16", "batch": 8, "seconds": 30, "tokens": 100, "ms": 69.4}


class TestCommand:
    def table(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
        assert main(arguments) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
        return [dict(zip(header, row, strict=True)) for row in rows]

    def test_prints_a_row_for_each_precision_and_batch(self, capsys: pytest.CaptureFixture[str]) -> None:
        rows = self.table(capsys, "--gpu", "T4", "--precision", "fp16", "int8-kv", "--batch", "1", "8", "2000")

        assert [(row["precision"], row["batch"]) for row in rows] == [
            (precision, batch) for precision in ("fp16", "int8-kv") for batch in ("1", "8", "2000")
        ]
        assert rows[1] == {
            "precision": "fp16",
            "batch": "8",
            "ms a row": "34.7",
            "rows/s": "28.8",
            "encoder ms a batch": "47.6 compute",
            "step ms a batch": "2.30 memory",
            "weights GB": "0.483",
            "K/V GB": "0.473",
        }
        assert rows[2]["K/V GB"] == "118 does not fit"

    def test_seconds_are_fifty_positions_each(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.table(capsys, "--seconds", "7.52") == self.table(capsys, "--positions", "376")

    def test_compares_with_what_was_measured(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        others = {"gpu": "l4", "model": "base", "seconds": 10, "tokens": 25, "precision": "fp32"}
        runs = [RUN, *({**RUN, field: other, "ms": 1} for field, other in others.items())]
        path = tmp_path / "measured.json"
        path.write_text(json.dumps(runs), encoding="utf-8")

        rows = self.table(capsys, "--precision", "fp16", "--batch", "1", "8", "--measured", str(path))

        assert [(row["measured ms a row"], row["ratio"]) for row in rows] == [("", ""), ("69.4", "2.00")]

    def test_takes_the_path_of_a_checkpoint(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        dims = replace(ODD_DIMS, n_mels=80, n_vocab=51_864)
        path = tmp_path / "little.pt"
        write_openai(path, dims, random_weights(dims))

        (row,) = self.table(
            capsys, "--model", str(path), "--precision", "fp32", "--batch", "2", "--positions", "20", "--tokens", "8"
        )

        expected = floor(dims, GPUS["t4"], PRECISIONS["fp32"], batch=2, positions=20, tokens=8)
        assert float(row["ms a row"]) == pytest.approx(expected.row_ms, rel=0.01)

    def test_cpu_is_the_processor_measured(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(asr.floors, "this_cpu", lambda: GPUS["l4"])

        assert self.table(capsys, "--gpu", "cpu") == self.table(capsys, "--gpu", "l4")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--gpu", "k80"], "invalid choice: 'k80' (choose from"),
            (["--model", "gigantic"], "gigantic: is neither a path nor one of tiny, base, small"),
            (["--precision", "fp8"], "invalid choice: 'fp8'"),
            (["--seconds", "31"], "1 to 1500 positions, not 1550"),
            (["--seconds", "inf"], "infinity"),
            (["--tokens", "445"], "1 to 444 tokens, not 445"),
            (["--batch", "0"], "at least 1 row"),
            (["--measured", "missing.json"], "missing.json cannot be read as a list of measurements"),
        ],
    )
    def test_says_what_it_does_not_know(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as stopped:
            main(arguments)

        assert stopped.value.code == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize(
        "content",
        [
            "[",
            "7",
            json.dumps(RUN),
            '[{"gpu": "t4"}]',
            json.dumps([{**RUN, "ms": 0}]),
            json.dumps([{**RUN, "seconds": 0}]),
        ],
    )
    def test_refuses_a_file_that_holds_no_measurements(
        self, content: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        path = tmp_path / "measured.json"
        path.write_text(content, encoding="utf-8")

        with pytest.raises(SystemExit):
            main(["--measured", str(path)])

        assert f"{path} cannot be read" in capsys.readouterr().err
