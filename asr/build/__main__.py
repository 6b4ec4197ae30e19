"""Build the graphs of a model ahead of time: `python -m asr.build --model base --precision int8`.

python -m asr.build --model base --backend tensorrt --precision int8 --calibration recordings/
python -m asr.build --model small --backend tensorrt --precision mixed --calibration recordings/manifest.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from asr.build.artefacts import Artefacts, ensure_artefacts
from asr.build.recipe import Activations, GraphBackend, Precision, RangeMethod, Recipe, TensorRTSettings
from asr.checkpoint import load_checkpoint
from asr.errors import AsrError
from asr.openvino_library import cpu_backend

MIB = 1 << 20


def main(arguments: Sequence[str]) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        artefacts = ensure_artefacts(load_checkpoint(parsed.model), _recipe(parsed), parsed.output)
    except (AsrError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    manifest = artefacts.manifest
    print(json.dumps(manifest, indent=2) if parsed.json else summary(artefacts, manifest))  # noqa: T201
    return 0


def summary(artefacts: Artefacts, manifest: dict[str, Any]) -> str:
    """The directory, and a Markdown table of what is in it."""
    rows = ["| graph | precision | products in int8 | MiB | built in |", "|---|---|---:|---:|---:|"]
    rows += [
        f"| {graph['graph']} | {graph['precision']} | {graph['quantized']} of {graph['products']} "
        f"| {graph['bytes'] / MIB:.1f} | {graph['seconds']} s |"
        for graph in manifest["graphs"]
    ]
    return "\n".join([str(artefacts.directory), "", *rows])


def _recipe(parsed: argparse.Namespace) -> Recipe:
    options = {
        "target": parsed.target,
        "max_batch": parsed.max_batch,
        "frames": parsed.frames and tuple(parsed.frames),
        "optimization_level": parsed.opt_level,
        "workspace_mib": parsed.workspace,
    }
    given = {name: value for name, value in options.items() if value is not None}
    backend = parsed.backend
    if backend == "auto":
        backend = "onnx" if parsed.activations else cpu_backend(parsed.precision)
    return Recipe(
        precision=parsed.precision,
        backend=backend,
        activations=parsed.activations,
        calibration=parsed.calibration,
        range_method=parsed.range_method,
        trailing_silence=parsed.trailing_silence,
        max_error_increase=parsed.max_error_increase,
        tensorrt=TensorRTSettings(**given) if given else None,  # any plan for this GPU is as good as another
    )


def _parser() -> argparse.ArgumentParser:
    defaults, plan = Recipe(), TensorRTSettings()
    parser = argparse.ArgumentParser(
        prog="python -m asr.build", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="base", help="name, path or hub id of a Whisper checkpoint (%(default)s)")
    parser.add_argument("--backend", choices=("auto", *get_args(GraphBackend)), default="auto")
    parser.add_argument("--precision", choices=get_args(Precision), default=defaults.precision)
    parser.add_argument("--output", "--cache", type=Path, help="folder of built models; by default the user's cache")
    parser.add_argument("--json", action="store_true", help="print the manifest instead of a table")
    int8 = parser.add_argument_group("int8 and mixed")
    int8.add_argument(
        "--calibration",
        type=Path,
        metavar="MANIFEST_OR_DIR",
        help="recordings to find ranges with; texts, which mixed needs, come from a manifest.jsonl",
    )
    int8.add_argument(
        "--activations", choices=get_args(Activations), help="by default per-token, for TensorRT calibrated"
    )
    int8.add_argument("--range-method", choices=get_args(RangeMethod), default=defaults.range_method)
    int8.add_argument(
        "--no-trailing-silence",
        dest="trailing_silence",
        action="store_false",
        help="calibrate on speech alone, for comparison",
    )
    int8.add_argument(
        "--max-error-increase",
        type=float,
        default=defaults.max_error_increase,
        help="of mixed, in points of word error rate (%(default)s)",
    )
    tensorrt = parser.add_argument_group("TensorRT")
    tensorrt.add_argument("--target", help="sm75 (T4), sm86 (A10G), sm89 (L4), …; by default the GPU of this machine")
    tensorrt.add_argument("--max-batch", type=int, help=f"rows ({plan.max_batch})")
    tensorrt.add_argument(
        "--frames",
        type=int,
        nargs=3,
        metavar=("MIN", "OPT", "MAX"),
        help=f"log-mel frames of a row, 100 a second {plan.frames}",
    )
    tensorrt.add_argument("--opt-level", type=int, choices=range(6), help=f"({plan.optimization_level})")
    tensorrt.add_argument("--workspace", type=int, metavar="MIB", help="bound of the memory for intermediate results")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
