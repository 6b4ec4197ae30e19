"""Build the graphs of a model ahead of time: `python -m asr.build --model base --precision int8`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from asr.build.artefacts import ensure_artefacts
from asr.checkpoint import load_checkpoint
from asr.errors import AsrError


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m asr.build", description=__doc__)
    parser.add_argument("--model", default="base", help="name, path or hub id of a Whisper checkpoint")
    parser.add_argument("--precision", choices=["fp32", "int8"], default="int8")
    parser.add_argument("--cache", type=Path, default=None, help="where the graphs are kept")
    parsed = parser.parse_args(arguments)
    try:
        artefacts = ensure_artefacts(load_checkpoint(parsed.model), parsed.precision, parsed.cache)
    except AsrError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(artefacts.directory)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
