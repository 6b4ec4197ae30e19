"""PyTorch modules → ONNX graphs with dynamic batch, frames, steps and cache capacity."""

from __future__ import annotations

import ast
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import ModelProto, NodeProto
from torch import Tensor, nn
from torch.export import Dim

from asr.build.products import HEAD, products_of
from asr.model import (
    Decoder,
    Dims,
    Encoder,
    decoder_input_names,
    decoder_output_names,
    encoder_input_names,
    encoder_output_names,
)

MAX_BATCH = 256
MIN_POSITIONS, MIN_CAPACITY = 2, 2  # a dimension of 1 would be taken for a constant
OPSET = 20  # the last before 21's changes to quantisation operators; LayerNormalization and Gelu are single operators


def dimension_ranges(dims: Dims) -> dict[str, tuple[int, int]]:
    """Name of every dynamic dimension of the graphs → the smallest and the largest size that it may have.

    The graphs' inputs carry these names (onnx's `dim_param`); log-mel frames are called `2*positions`.
    """
    return {
        "batch": (1, MAX_BATCH),
        "positions": (MIN_POSITIONS, dims.n_audio_ctx),
        "steps": (1, dims.n_text_ctx),
        "wanted": (1, dims.n_text_ctx),
        "capacity": (MIN_CAPACITY, dims.n_text_ctx),
    }


def export_encoder(encoder: Encoder, dims: Dims, path: Path) -> None:
    """Write the encoder graph, named as `asr.model` says."""
    dim = _dimensions(dims)
    batch, positions = dim["batch"], dim["positions"]
    example = (
        torch.zeros(2, dims.n_mels, 64),
        torch.tensor([64, 32]),
        torch.arange(32).expand(2, -1).contiguous(),
        torch.zeros(2, 32),
    )
    shapes = ({0: batch, 2: 2 * positions}, {0: batch}, {0: batch, 1: positions}, {0: batch, 1: positions})
    _export(encoder, example, shapes, encoder_input_names(), encoder_output_names(dims), path)


def export_decoder(decoder: Decoder, dims: Dims, path: Path) -> None:
    """Write the decoder graph, which serves prompts and single steps."""
    dim = _dimensions(dims)
    batch, positions, steps, wanted, capacity = (
        dim[name] for name in ("batch", "positions", "steps", "wanted", "capacity")
    )
    inputs, shapes = [], []

    def add(tensor: Tensor, shape: dict[int, Any]) -> None:
        inputs.append(tensor)
        shapes.append(shape)

    heads, head_dim = dims.n_text_head, dims.head_dim
    add(torch.zeros(2, 3, dtype=torch.int64), {0: batch, 1: steps})
    add(torch.tensor([4, 5]), {0: batch})
    add(torch.zeros(2, 2, dtype=torch.int64), {0: batch, 1: wanted})
    add(torch.zeros(2, 32), {0: batch, 1: positions})
    for _ in range(2 * dims.n_text_layer):
        add(torch.zeros(2, heads, 16, head_dim), {0: batch, 2: capacity})
    for _ in range(dims.n_text_layer):
        add(torch.zeros(2, heads, head_dim, 32), {0: batch, 3: positions})
        add(torch.zeros(2, heads, 32, head_dim), {0: batch, 2: positions})
    *named, caches = shapes[0], shapes[1], shapes[2], shapes[3], tuple(shapes[4:])
    _export(decoder, tuple(inputs), (*named, caches), decoder_input_names(dims), decoder_output_names(), path)


def _dimensions(dims: Dims) -> dict[str, Dim]:
    return {name: Dim(name, min=least, max=most) for name, (least, most) in dimension_ranges(dims).items()}


def _name_products(model: ModelProto) -> None:
    """Call every product by a constant matrix as the module that it comes from, a name that survives other tools."""
    for product in products_of(model).values():
        product.node.name = _module_of(product.node) or HEAD


def _module_of(node: NodeProto) -> str:
    """The module that a node was exported from, such as `blocks.0.attn.value`; empty for the outermost."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes: list[str] = ast.literal_eval(entry.value)  # outermost first, the operator last
            return scopes[-2]
    return ""


def _export(
    module: nn.Module,
    example: Sequence[Tensor],
    shapes: Sequence[Any],
    input_names: list[str],
    output_names: list[str],
    path: Path,
) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export warns of its own deprecations
        program = torch.onnx.export(
            module,
            tuple(example),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=tuple(shapes),
            input_names=input_names,
            output_names=output_names,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    _name_products(model)
    onnx.save_model(model, path)
