"""What an operator sets, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.settings import Settings


def settings(**values: Any) -> Settings:
    """As they come from the command line or a config file."""
    return Settings.model_validate(values)


def test_defaults() -> None:
    assert settings().model_dump() == {
        "model": "base",
        "served_model_name": None,
        "precision": "int8",
        "backend": "auto",
        "threads": None,
        "cache_dir": None,
        "max_batch_size": None,
        "max_batch_audio_s": None,
        "batch_wait_ms": 0.0,
    }


def test_strings_of_the_command_line() -> None:
    given = settings(
        threads="2", cache_dir="/var/cache", max_batch_size="8", max_batch_audio_s="60", batch_wait_ms="2.5"
    )

    assert given.threads == 2
    assert given.cache_dir == Path("/var/cache")
    assert given.max_batch_size == 8
    assert given.max_batch_audio_s == 60.0
    assert given.batch_wait_ms == 2.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batchsize", "8"),
        ("num_gpus", "1"),
        ("max_batch_size", "0"),
        ("max_batch_size", "257"),
        ("max_batch_size", "many"),
        ("max_batch_audio_s", "-1"),
        ("batch_wait_ms", "-1"),
        ("threads", "0"),
        ("precision", "int4"),
        ("backend", "tensorflow"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        settings(**{name: value})


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "int8-weights", "mixed"])
@pytest.mark.parametrize(
    ("backend", "refused", "told"),
    [
        ("auto", [], ""),
        ("onnx", ["bf16"], "backend onnx runs precision fp32, fp16, int8, int8-weights or mixed only"),
        ("openvino", ["fp16", "int8-weights", "mixed"], "backend openvino runs precision fp32, bf16 or int8 only"),
        ("tensorrt", ["bf16"], "backend tensorrt runs precision fp32, fp16, int8, int8-weights or mixed only"),
        ("torch", ["bf16", "int8", "int8-weights", "mixed"], "backend torch runs precision fp32 or fp16 only"),
    ],
)
def test_precisions_that_a_backend_does_not_have(backend: str, refused: list[str], told: str, precision: str) -> None:
    if precision in refused:
        with pytest.raises(ValidationError, match=told):
            settings(backend=backend, precision=precision)
    else:
        given = settings(backend=backend, precision=precision)
        assert (given.backend, given.precision) == (backend, precision)


def test_torch_has_to_be_told_its_precision() -> None:
    with pytest.raises(ValidationError, match="backend torch runs precision fp32 or fp16 only"):
        settings(backend="torch")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "base"),
        ({"model": "tiny.en"}, "tiny.en"),
        ({"model": "openai/whisper-large-v3"}, "whisper-large-v3"),
        ({"model": "/models/base-de"}, "base-de"),
        ({"model": "/models/base-de/"}, "base-de"),
        ({"model": "/models/base-de", "served_model_name": "speech"}, "speech"),
    ],
)
def test_name_in_the_api(values: dict[str, str], name: str) -> None:
    assert settings(**values).model_name == name


def test_settings_do_not_change() -> None:
    given: Any = settings()

    with pytest.raises(ValidationError, match="frozen"):
        given.model = "tiny.en"
