"""How fast Whisper can be at best on a device, as a table: `python -m asr.floors --gpu t4 --model small`.

`asr.roofline` has the model behind it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asr.checkpoint import load_checkpoint
from asr.devices import GPUS, this_cpu
from asr.errors import CheckpointError, CheckpointNotFoundError
from asr.model import Dims
from asr.roofline import MODELS, POSITIONS_PER_SECOND, PRECISIONS, Floor, floor

GPU_PRECISIONS = ["fp32", "fp16", "int8-weights", "int8", "int8-kv"]


def find_dims(model: str) -> Dims:
    """The sizes of a published model by name, or of a checkpoint by path.

    Raises:
        CheckpointError: it is neither, or the checkpoint cannot be read.
    """
    if model in MODELS:
        return MODELS[model]
    if not Path(model).exists():  # a hub id would have all its weights downloaded
        raise CheckpointNotFoundError(model, f"is neither a path nor one of {', '.join(MODELS)}")
    return load_checkpoint(model).dims


@dataclass(frozen=True)
class Measurement:
    """What a run took. gpu, model, precision: as on the command line; seconds: encoded of a row; ms: of the batch,
    divided by its rows."""

    gpu: str
    model: str
    precision: str
    batch: int
    seconds: float
    tokens: int
    ms: float

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.ms > 0):
            raise ValueError("seconds and ms must be above 0")


def read_measurements(path: Path) -> list[Measurement]:
    """
    Raises:
        ValueError: the file is no JSON list of measurements.
    """
    try:
        return [Measurement(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a list of measurements: {error}") from error


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        positions = _positions(parsed.seconds) if parsed.positions is None else parsed.positions
        dims = find_dims(parsed.model)
        measurements = read_measurements(parsed.measured) if parsed.measured else []
        device = this_cpu() if parsed.gpu == "cpu" else GPUS[parsed.gpu]
        floors = {
            (name, batch): floor(dims, device, PRECISIONS[name], batch=batch, positions=positions, tokens=parsed.tokens)
            for name in parsed.precision
            for batch in parsed.batch
        }
    except (CheckpointError, OverflowError, ValueError) as error:
        parser.error(str(error))
    measured_ms = {
        (entry.precision, entry.batch): entry.ms
        for entry in measurements
        if (entry.gpu, entry.model, entry.tokens) == (parsed.gpu, parsed.model, parsed.tokens)
        and _positions(entry.seconds) == positions
    }
    rates = ", ".join(f"{name} {_digits(rate / 1e12)}" for name, rate in device.peaks.items())
    row = f"{positions} positions ({positions / POSITIONS_PER_SECOND:g} s) and {parsed.tokens} tokens a row"
    print(f"Whisper {parsed.model} on {device.title}, lower bounds for {row}.")  # noqa: T201
    limits = f"{_digits(device.bandwidth / 1e9)} GB/s; TFLOP/s: {rates}; {_digits(device.memory / 1e9)} GB"
    print(f"{limits}; {device.note}." if device.note else f"{limits}.")  # noqa: T201
    print("", *_table(floors, device.memory, measured_ms if measurements else None), sep="\n")  # noqa: T201
    return 0


def _positions(seconds: float) -> int:
    return round(seconds * POSITIONS_PER_SECOND)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m asr.floors", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpu", type=str.lower, choices=[*GPUS, "cpu"], default="t4", help="cpu: this one, measured")
    parser.add_argument("--model", default="small", help="OpenAI's name of a size, or the path of a checkpoint")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(GPU_PRECISIONS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 16, 32], help="rows decoded together")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=30.0, help="encoded of a row, padding included")
    length.add_argument("--positions", type=int, help="the same in encoder positions, 50 a second")
    parser.add_argument("--tokens", type=int, default=100, help="decoded for a row")
    parser.add_argument("--measured", type=Path, help="JSON list of what runs took; fields: asr.floors.Measurement")
    return parser


COLUMNS = ["precision", "batch", "ms a row", "rows/s", "encoder ms a batch", "step ms a batch", "weights GB", "K/V GB"]


def _table(
    floors: Mapping[tuple[str, int], Floor], memory: float, measured_ms: Mapping[tuple[str, int], float] | None
) -> list[str]:
    """Lines of Markdown; floors, measured_ms: by precision and batch; memory: of the device, byte."""
    rows = [COLUMNS + ["measured ms a row", "ratio"] * (measured_ms is not None)]
    rows.append(["---"] + ["---:"] * (len(rows[0]) - 1))
    for (precision, batch), bound in floors.items():
        stages = [f"{_digits(1000 * stage.seconds)} {stage.bound}" for stage in (bound.encoder, bound.step)]
        fits = bound.weight_bytes + bound.kv_bytes <= memory
        stored = [_digits(bound.weight_bytes / 1e9), _digits(bound.kv_bytes / 1e9) + " does not fit" * (not fits)]
        row = [precision, str(batch), _digits(bound.row_ms), _digits(1000 / bound.row_ms), *stages, *stored]
        if measured_ms is not None:
            ms = measured_ms.get((precision, batch))
            row += ["", ""] if ms is None else [_digits(ms), f"{ms / bound.row_ms:.2f}"]
        rows.append(row)
    return [f"| {' | '.join(row)} |" for row in rows]


def _digits(value: float) -> str:
    """Three significant digits of a positive number, never with an exponent."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
