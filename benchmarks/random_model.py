"""Write a Whisper checkpoint of any size with random weights: what it says means nothing, what it costs is the same.

python -m benchmarks.random_model --size small small-random.pt
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from asr.model import Decoder, Dims, Encoder
from asr.roofline import MODELS


def random_weights(dims: Dims, seed: int = 0) -> dict[str, Tensor]:
    """Parameters in float32 under OpenAI's names, as PyTorch initialises the layers."""
    torch.manual_seed(seed)
    encoder, decoder = Encoder(dims), Decoder(dims)
    for module in (encoder, decoder):
        torch.nn.init.normal_(module.positional_embedding, std=0.01)
    torch.nn.init.normal_(decoder.token_embedding.weight, std=0.02)
    weights = {f"decoder.{name}": value for name, value in decoder.state_dict().items()}
    return weights | _under_openai_names(encoder.state_dict())


def _under_openai_names(encoder: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cross-attention keys and values are the decoder's there."""
    named = {}
    for name, value in encoder.items():
        graph, _, rest = name.partition(".")
        layer, _, part = rest.partition(".")
        named[f"decoder.blocks.{layer}.cross_attn.{part}" if graph == "cross" else f"encoder.{name}"] = value
    return named


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_model", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--size", choices=MODELS, default="small")
    parser.add_argument("path", type=Path, help="an OpenAI .pt file")
    options = parser.parse_args(arguments)
    dims = MODELS[options.size]
    torch.save({"dims": asdict(dims), "model_state_dict": random_weights(dims)}, options.path)


if __name__ == "__main__":
    main()
