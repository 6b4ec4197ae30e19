"""Hugging Face Whisper directories: config.json, safetensors (one file or sharded), and a vocabulary."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from asr.checkpoint.normalised import Checkpoint, Weights
from asr.checkpoint.vocabulary import read_vocabulary
from asr.errors import CheckpointError, UnsupportedArchitectureError
from asr.model import Dims

RENAMES = [  # transformers' names → OpenAI's, applied in order
    (r"^model\.", ""),
    (r"\.layers\.", ".blocks."),
    (r"\.embed_positions\.weight$", ".positional_embedding"),
    (r"\.embed_tokens\.", ".token_embedding."),
    (r"^encoder\.layer_norm\.", "encoder.ln_post."),
    (r"^decoder\.layer_norm\.", "decoder.ln."),
    (r"\.self_attn_layer_norm\.", ".attn_ln."),
    (r"\.encoder_attn_layer_norm\.", ".cross_attn_ln."),
    (r"\.final_layer_norm\.", ".mlp_ln."),
    (r"\.self_attn\.", ".attn."),
    (r"\.encoder_attn\.", ".cross_attn."),
    (r"\.q_proj\.", ".query."),
    (r"\.k_proj\.", ".key."),
    (r"\.v_proj\.", ".value."),
    (r"\.out_proj\.", ".out."),
    (r"\.fc1\.", ".mlp.0."),
    (r"\.fc2\.", ".mlp.2."),
]
TIED_HEAD = "proj_out.weight"


def read_huggingface(directory: Path) -> Checkpoint:
    """Open a Hugging Face directory."""
    config = _read_json(directory / "config.json")
    if config.get("model_type") != "whisper":
        raise UnsupportedArchitectureError(
            str(directory / "config.json"), f"describes a {config.get('model_type')!r} model, not Whisper"
        )
    dims = _dims(config, directory / "config.json")
    files = _weight_files(directory)
    return Checkpoint(
        name=directory.name,
        files=files,
        dims=dims,
        vocabulary=read_vocabulary(directory, dims.n_vocab),
        read_weights=lambda: _read_weights(files),
    )


def normalised_name(name: str) -> str:
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(str(path), f"is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(str(path), "is not a JSON object")
    return content


def _dims(config: dict[str, Any], path: Path) -> Dims:
    try:
        return Dims(
            n_mels=config["num_mel_bins"],
            n_audio_ctx=config["max_source_positions"],
            n_audio_state=config["d_model"],
            n_audio_head=config["encoder_attention_heads"],
            n_audio_layer=config["encoder_layers"],
            n_vocab=config["vocab_size"],
            n_text_ctx=config["max_target_positions"],
            n_text_state=config["d_model"],
            n_text_head=config["decoder_attention_heads"],
            n_text_layer=config["decoder_layers"],
        )
    except KeyError as error:
        raise CheckpointError(str(path), f"lacks {error}") from error


def _weight_files(directory: Path) -> list[Path]:
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise CheckpointError(str(directory), "holds no model.safetensors")
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(str(index), "lacks 'weight_map'")
    files = [directory / name for name in sorted(set(weight_map.values()))]
    for path in files:
        if not path.is_file():
            raise CheckpointError(str(path), "is named in the index but missing")
    return files


def _read_weights(files: list[Path]) -> Weights:
    weights: Weights = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    if name != TIED_HEAD:
                        weights[normalised_name(name)] = file.get_tensor(name).to(torch.float32)
        except SafetensorError as error:
            raise CheckpointError(str(path), f"is truncated or damaged ({error})") from error
    return weights
