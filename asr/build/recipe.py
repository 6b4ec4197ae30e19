"""What is to be built of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int8", "int8-weights", "mixed"]
Backend: TypeAlias = Literal["auto", "onnx", "openvino", "tensorrt", "torch"]
GraphBackend: TypeAlias = Literal["onnx", "openvino", "tensorrt"]  # torch needs no graphs
Activations: TypeAlias = Literal["per-token", "calibrated"]
RangeMethod: TypeAlias = Literal["max", "entropy"]

QUANTIZED = ("int8", "mixed")
OPENVINO_GRAPHS: Mapping[Precision, Precision] = {"fp32": "fp32", "bf16": "fp32", "int8": "int8-weights"}
"""Precision in OpenVINO → the precision of ONNX Runtime whose graph it runs."""
PRECISIONS: Mapping[Backend, tuple[Precision, ...]] = {
    "onnx": ("fp32", "fp16", "int8", "int8-weights", "mixed"),
    "openvino": tuple(OPENVINO_GRAPHS),
    "tensorrt": ("fp32", "fp16", "int8", "int8-weights", "mixed"),
    "torch": ("fp32", "fp16"),
}


def check_precision(backend: Backend, precision: Precision) -> None:
    """
    Raises:
        ValueError: the backend does not have this precision. "auto" has them all.
    """
    *most, last = PRECISIONS.get(backend, (precision,))
    if precision not in (*most, last):
        raise ValueError(f"backend {backend} runs precision {', '.join(most)} or {last} only")


@dataclass(frozen=True)
class TensorRTSettings:
    """What a TensorRT plan is made for.

    target: "native" for the GPU of this machine, or a compute capability such as "sm75"; max_batch: rows; frames:
    smallest, typical and largest log-mel frames (100 a second) of a row, by default from the shortest window that is
    ever encoded to 30 s; optimization_level: 0 to 5; workspace_mib: bound of the memory for intermediate results.
    """

    target: str = "native"
    max_batch: int = 32
    frames: tuple[int, int, int] = (280, 800, 3000)
    optimization_level: int = 5
    workspace_mib: int | None = None

    @property
    def workspace_bytes(self) -> int | None:
        return None if self.workspace_mib is None else self.workspace_mib << 20


@dataclass(frozen=True)
class Recipe:
    """How the graphs of a checkpoint are made, and what runs them.

    precision: fp16 keeps in float32 what float16 cannot hold; int8 has products in int8, int8-weights only their
    weights (ONNX Runtime's CPU multiplies them with activations that it rounds to int8 by blocks); mixed is int8 where
    a measurement on the calibration set allows it. OpenVINO computes the float32 graph in bf16, and rounds activations
    itself where it finds weights in int8, so that both need no graphs of their own.
    activations: how int8 products see their left operand. per-token (ONNX Runtime): each by its own range, found while
    running. calibrated (the only way of TensorRT): one range for each product, found beforehand. None: by the backend.
    calibration: a folder of recordings or a manifest; None takes what was built with any, and cannot build what needs
    one.
    range_method, trailing_silence: how ranges are chosen, and on which windows. max_error_increase: of mixed, in points
    of word error rate. tensorrt: None takes a plan for the GPU of this machine, however made.
    """

    precision: Precision = "int8"
    backend: GraphBackend = "onnx"
    activations: Activations | None = None
    calibration: Path | None = None
    range_method: RangeMethod = "max"
    trailing_silence: bool = True
    max_error_increase: float = 0.4
    tensorrt: TensorRTSettings | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: the backend does not have this precision.
        """
        check_precision(self.backend, self.precision)

    @property
    def graphs(self) -> Recipe:
        """By what the graphs are made that this runs."""
        if self.backend == "openvino":
            return replace(self, backend="onnx", precision=OPENVINO_GRAPHS[self.precision])
        return self

    @property
    def has_int8(self) -> bool:
        return self.quantizes_activations or self.precision == "int8-weights"

    @property
    def quantizes_activations(self) -> bool:
        return self.precision in QUANTIZED

    @property
    def resolved_activations(self) -> Activations:
        if self.backend == "tensorrt":
            return "calibrated"
        return self.activations or "per-token"

    @property
    def needs_calibration(self) -> bool:
        return self.precision == "mixed" or (self.precision == "int8" and self.resolved_activations == "calibrated")

    @property
    def is_half(self) -> bool:
        """Whether what is not int8 is float16."""
        return self.precision == "fp16" or (self.backend == "tensorrt" and self.precision != "fp32")
