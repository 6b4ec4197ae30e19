"""Session over a PyTorch module, on the CPU or a CUDA device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from asr.errors import OutOfMemoryError, RecognitionError
from asr.model import (
    Decoder,
    Dims,
    Encoder,
    decoder_input_names,
    decoder_output_names,
    encoder_input_names,
    encoder_output_names,
)

CPU = torch.device("cpu")


def torch_sessions(
    encoder: Encoder, decoder: Decoder, dims: Dims, device: torch.device = CPU
) -> tuple[TorchSession, TorchSession]:
    """Sessions over both networks of a model, in the precision of their parameters."""
    return (
        TorchSession(encoder, encoder_input_names(), encoder_output_names(dims), device),
        TorchSession(decoder, decoder_input_names(dims), decoder_output_names(), device),
    )


class TorchSession:
    """Runs `module`, whose positional arguments and results are named here, in the precision of its parameters."""

    def __init__(
        self, module: nn.Module, input_names: Sequence[str], output_names: Sequence[str], device: torch.device
    ) -> None:
        self.device = device
        self.dtype = next(module.parameters()).dtype
        self._module = module.to(device)
        self._input_names = input_names
        self._output_names = output_names

    def create_context(self, inputs: Mapping[str, Tensor]) -> None:
        """A module needs nothing of its own to be captured in a CUDA graph."""

    @torch.no_grad()
    def enqueue(self, inputs: Mapping[str, Tensor], context: object) -> dict[str, Tensor]:  # noqa: ARG002
        """Run on the current stream, as PyTorch always does."""
        outputs = self._module(*(inputs[name] for name in self._input_names))
        return dict(zip(self._output_names, outputs, strict=True))

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            return self.enqueue(inputs, None)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(str(error)) from error
        except RuntimeError as error:
            raise RecognitionError(str(error)) from error
