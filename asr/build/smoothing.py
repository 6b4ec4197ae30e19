"""Move the spread between channels from activations into weights, where each output has a scale of its own anyway.

A few channels of Whisper's activations are a hundred times as large as the others; one int8 range for all of them
leaves the others hardly any levels. Dividing a channel by a factor where it is made, and multiplying the weights that
read it by the same factor, changes no result. SmoothQuant (Xiao et al. 2022, arXiv:2211.10438) takes the factor that
splits the spread evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from asr.build.calibration import Activation
from asr.model import Decoder, Encoder

STRENGTH = 0.5  # of SmoothQuant: 0 leaves the activations as they are, 1 makes all their channels equal
SMALLEST = 1e-5  # of a channel's largest magnitude


@torch.no_grad()
def smooth(encoder: Encoder, decoder: Decoder, activations: Mapping[str, Activation]) -> None:
    """Change the weights of both modules so that they compute the same from smoother activations."""
    layers = nn.ModuleDict({"encoder": encoder, "decoder": decoder})

    def fold(producer: str, *consumers: str) -> None:
        channel_maxima = torch.from_numpy(activations[consumers[0]].channel_maxima)
        readers = [cast(nn.Linear, layers.get_submodule(name)) for name in consumers]
        _fold(channel_maxima, cast(nn.Linear | nn.LayerNorm, layers.get_submodule(producer)), readers)

    for index in range(len(encoder.blocks)):
        block = f"encoder.blocks.{index}"
        fold(f"{block}.attn_ln", *(f"{block}.attn.{part}" for part in ("query", "key", "value")))
        fold(f"{block}.attn.value", f"{block}.attn.out")  # attention only averages over tokens
        fold(f"{block}.mlp_ln", f"{block}.mlp.0")
    cross = [f"encoder.cross.{index}" for index in range(len(encoder.cross))]
    fold("encoder.ln_post", *(f"{layer}.{part}" for layer in cross for part in ("key", "value")))
    for index in range(len(decoder.blocks)):
        block = f"decoder.blocks.{index}"
        fold(f"{block}.attn_ln", *(f"{block}.attn.{part}" for part in ("query", "key", "value")))
        fold(f"{block}.attn.value", f"{block}.attn.out")
        fold(f"{block}.cross_attn_ln", f"{block}.cross_attn.query")
        fold(f"{cross[index]}.value", f"{block}.cross_attn.out")
        fold(f"{block}.mlp_ln", f"{block}.mlp.0")


def _fold(channel_maxima: Tensor, producer: nn.Linear | nn.LayerNorm, consumers: Sequence[nn.Linear]) -> None:
    """channel_maxima: (channels,), of what the producer makes and all consumers read."""
    weight_maxima = torch.stack([layer.weight.abs().amax(dim=0) for layer in consumers]).amax(dim=0)
    factors = channel_maxima.clamp(min=SMALLEST) ** STRENGTH / weight_maxima.clamp(min=SMALLEST) ** (1 - STRENGTH)
    factors /= factors.log().mean().exp()
    for layer in consumers:
        layer.weight.mul_(factors)
    producer.weight.div_(factors[:, None] if isinstance(producer, nn.Linear) else factors)
    if producer.bias is not None:
        producer.bias.div_(factors)
