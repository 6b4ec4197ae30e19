"""Imports go one way: serve_app → deployments → asr."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HTTP = {"fastapi", "httpx", "starlette", "uvicorn"}
FORBIDDEN = {  # package → what it may not import
    "asr": {"benchmarks", "deployments", "ray", "serve_app", "tests", *HTTP},
    "deployments": {"benchmarks", "serve_app", "tests", *HTTP},
    "serve_app": {"benchmarks", "tests"},
}


def imported(source: str) -> Iterator[str]:
    """Top-level names of everything imported, at whatever depth of the code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_imports_nothing_above_it(package: str) -> None:
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in set(imported(path.read_text(encoding="utf-8"))) & FORBIDDEN[package]
    }

    assert found == set()


def test_imports_are_found_wherever_they_hide() -> None:
    source = "import ray.serve as s, os\ndef f():\n    from starlette.requests import Request\n"

    assert set(imported(source)) == {"ray", "os", "starlette"}
