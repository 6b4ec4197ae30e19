"""float32 → float16 graphs by ModelOpt's AutoCast, which keeps in float32 what does not fit float16's range."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from torch import Tensor

from asr.errors import ArtefactError

LARGEST = 20_000.0
"""Beyond this an intermediate value stays in float32: a third of float16's largest, and above MASKED, which is exact
enough in float16."""


def require_modelopt() -> None:
    """
    Raises:
        ArtefactError: ModelOpt is not installed, or lacks what it needs.
    """
    try:
        import modelopt.onnx.autocast.convert  # noqa: F401
    except ImportError as error:
        raise ArtefactError("float16", "needs ModelOpt: pip install rayscribe[precision]") from error


def to_half(graph: Path, inputs: Mapping[str, Tensor]) -> ModelProto:
    """The graph in float16, its inputs and outputs included. inputs: real ones, to see how large values become.

    Raises:
        ArtefactError: ModelOpt is not installed, or cannot convert the graph.
    """
    require_modelopt()
    from modelopt.onnx.autocast.convert import convert_to_mixed_precision

    for logger in ("modelopt.onnx", "modelopt.onnx.autocast"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "inputs.npz"
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in inputs.items()}
        np.savez(reference, **arrays)
        try:
            converted: ModelProto = convert_to_mixed_precision(
                str(graph), low_precision_type="fp16", data_max=LARGEST, calibration_data=str(reference)
            )
        except Exception as error:  # whatever ModelOpt meets
            raise ArtefactError(str(graph), f"cannot be converted to float16 ({error!r})") from error
    onnx.checker.check_model(converted)
    return converted
