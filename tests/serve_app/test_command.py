"""The command builds what the service runs before it starts Ray, and ends if that cannot be built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import ray.serve

from asr.build.recipe import Backend
from serve_app.__main__ import main
from serve_app.ray_environment import RAY_ENVIRONMENT, configure_ray


@pytest.mark.parametrize("backend", ["auto", "onnx", "openvino", "tensorrt"])
def test_what_cannot_be_built_is_said_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    monkeypatch.setattr("serve_app.cluster.run", lambda *_: pytest.fail("the service was started"))
    model = tmp_path / "not there.pt"

    assert main([f"model={model}", f"backend={backend}", "precision=int8", f"cache_dir={tmp_path / 'cache'}"]) == 1
    assert capfd.readouterr().err == f"error: {model}: no such file or directory\n"


def test_mixed_is_built_beforehand(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A service has no recordings to choose by."""
    assert main(["model=tiny.en", "precision=mixed", f"cache_dir={tmp_path}"]) == 1
    assert "--backend onnx --precision mixed --calibration FOLDER" in capfd.readouterr().err


def test_torch_needs_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr("serve_app.__main__.build_artefacts", lambda _: pytest.fail("something was built"))
    monkeypatch.setattr("serve_app.cluster.run", lambda settings, *_: started.append(settings.backend))

    assert main(["model=tiny.en", "backend=torch", "precision=fp16"]) == 0
    assert started == ["torch"]


def test_ray_is_configured_unless_the_environment_says_otherwise() -> None:
    environment = {"RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.1", "HOME": "/home/me"}
    configure_ray(environment)

    assert environment == RAY_ENVIRONMENT | {"RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.1", "HOME": "/home/me"}


def test_ray_is_configured_before_it_is_imported() -> None:
    """What is set later holds for the processes that it starts, and not for the handles that they are given."""
    script = "import sys, serve_app.__main__; sys.exit('ray' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_ray_knows_what_is_configured() -> None:
    """A name that Ray does not read would be without effect, and nobody would notice."""
    constants = (Path(ray.serve.__file__).parent / "_private" / "constants.py").read_text(encoding="utf-8")

    for name in RAY_ENVIRONMENT.keys() - {"RAY_USAGE_STATS_ENABLED", "MALLOC_ARENA_MAX"}:
        assert f'"{name}"' in constants
