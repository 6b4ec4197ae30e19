"""The OpenVINO that is installed, if any, and when to use it. It is not imported before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from asr.build.recipe import Precision
from asr.errors import ArtefactError


@dataclass(frozen=True)
class OpenVinoLibrary:
    """module: the Python bindings; core: the process's one Core of theirs."""

    module: Any
    core: Any

    @property
    def has_bfloat16(self) -> bool:
        """Whether this processor has units for bfloat16."""
        return "BF16" in self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@cache
def load_openvino() -> OpenVinoLibrary:
    """Import OpenVINO if it is there.

    Raises:
        ArtefactError: it is not installed, or cannot be loaded.
    """
    try:
        import openvino
        import openvino.preprocess

        return OpenVinoLibrary(openvino, openvino.Core())
    except ModuleNotFoundError as error:
        if error.name != "openvino":
            raise ArtefactError("OpenVINO", f"is installed but cannot be loaded ({error})") from error
        raise ArtefactError("OpenVINO", "is not installed: pip install rayscribe[openvino]") from error
    except (ImportError, OSError, RuntimeError) as error:
        raise ArtefactError("OpenVINO", f"is installed but cannot be loaded ({error})") from error


def cpu_backend(precision: Precision) -> Literal["onnx", "openvino"]:
    """What "auto" stands for here: OpenVINO for bf16, which it alone has, and for int8 where that is faster."""
    return "openvino" if precision == "bf16" or (precision == "int8" and _has_bfloat16()) else "onnx"


def _has_bfloat16() -> bool:
    try:
        return load_openvino().has_bfloat16
    except ArtefactError:
        return False
