"""Session over a PyTorch module, on the CPU or a CUDA device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from asr.errors import RecognitionError


class TorchSession:
    """Runs `module`, whose positional arguments and results are named here."""

    def __init__(
        self, module: nn.Module, input_names: Sequence[str], output_names: Sequence[str], device: torch.device
    ) -> None:
        self.device = device
        self._module = module.to(device)
        self._input_names = input_names
        self._output_names = output_names

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            outputs = self._module(*(inputs[name] for name in self._input_names))
        except RuntimeError as error:
            raise RecognitionError(str(error)) from error
        return dict(zip(self._output_names, outputs, strict=True))
