"""The one seam between the engine and whatever runs a graph.

A Session is one loaded graph with named inputs and outputs. Values are torch tensors on the session's device: a CPU
tensor shares its memory with NumPy and ONNX Runtime, a CUDA tensor is an address that TensorRT binds, so no
implementation has to copy. Implementations live in `asr.sessions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor


class Session(Protocol):
    """A graph that is ready to run, by one thread at a time unless the implementation says otherwise."""

    @property
    def device(self) -> torch.device:
        """Where inputs must lie and outputs appear."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of all inputs and outputs that are not integers; logits may be float32 all the same."""
        ...

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run once. Inputs are contiguous and stay untouched; outputs are new tensors that the caller may change.

        Raises:
            RecognitionError: the graph failed on these inputs; OutOfMemoryError where they are too large.
        """
        ...
