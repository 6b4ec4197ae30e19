"""What the commands that start a service have in common."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.load.workload import utterance_clips
from benchmarks.speech_set import DEFAULT_SPEECH, Clip, SpeechSetError


def command_parser(name: str, document: str | None, model: str) -> argparse.ArgumentParser:
    """document: of the module, whose first line says what it does; model: unless told otherwise."""
    description = (document or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings of the service")
    parser.add_argument("--model", default=model)
    parser.add_argument("--speech", type=Path, default=DEFAULT_SPEECH, help="folder of a speech set")
    parser.add_argument("--output", type=Path, default=Path("reports"), help="folder for what is found")
    return parser


def clips_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Clip]:
    """What is sent; ends the command where it cannot be read."""
    try:
        return utterance_clips(options.speech)
    except SpeechSetError as error:
        parser.error(str(error))


def write_report(stem: Path, text: str, found: object) -> None:
    """Write <stem>.md and, as JSON, <stem>.json."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    stem.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
