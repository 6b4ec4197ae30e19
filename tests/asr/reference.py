"""The same weights in this project's modules and in transformers', which tests take as the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration
from whisper.model import ModelDimensions, Whisper

from asr.checkpoint import Checkpoint
from asr.model import Decoder, Dims, Encoder, build_modules

BLOCK_NAMES = {
    "attn_ln": "self_attn_layer_norm",
    "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.key": "encoder_attn.k_proj",
    "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.out": "encoder_attn.out_proj",
    "mlp_ln": "final_layer_norm",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
}
OTHER_NAMES = {
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.token_embedding.weight": "decoder.embed_tokens.weight",
    "encoder.ln_post.weight": "encoder.layer_norm.weight",
    "encoder.ln_post.bias": "encoder.layer_norm.bias",
    "decoder.ln.weight": "decoder.layer_norm.weight",
    "decoder.ln.bias": "decoder.layer_norm.bias",
}


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint with all its weights read."""

    checkpoint: Checkpoint
    weights: Mapping[str, Tensor]
    encoder: Encoder
    decoder: Decoder

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> LoadedModel:
        weights = checkpoint.read_weights()
        return cls(checkpoint, weights, *build_modules(checkpoint.dims, weights))

    @property
    def dims(self) -> Dims:
        return self.checkpoint.dims


def transformers_name(name: str) -> str:
    """OpenAI's name of a parameter → transformers'."""
    if ".blocks." not in name:
        return "model." + OTHER_NAMES.get(name, name)
    part, _, layer, rest = name.split(".", 3)
    inner, kind = rest.rsplit(".", 1)
    return f"model.{part}.layers.{layer}.{BLOCK_NAMES[inner]}.{kind}"


def transformers_model(dims: Dims, weights: Mapping[str, Tensor]) -> Any:
    """transformers' network over the same tensors, which are shared, not copied."""
    config = WhisperConfig(
        vocab_size=dims.n_vocab,
        num_mel_bins=dims.n_mels,
        d_model=dims.n_audio_state,
        encoder_layers=dims.n_audio_layer,
        encoder_attention_heads=dims.n_audio_head,
        encoder_ffn_dim=4 * dims.n_audio_state,
        decoder_layers=dims.n_text_layer,
        decoder_attention_heads=dims.n_text_head,
        decoder_ffn_dim=4 * dims.n_text_state,
        max_source_positions=dims.n_audio_ctx,
        max_target_positions=dims.n_text_ctx,
    )
    with torch.device("meta"):
        model: Any = WhisperForConditionalGeneration(config)
    state = {transformers_name(name): value for name, value in weights.items()}
    state["proj_out.weight"] = weights["decoder.token_embedding.weight"]
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    return model.eval().requires_grad_(False)


def random_weights(dims: Dims) -> dict[str, Tensor]:
    """The weights of a model of this size that was never trained, always the same, under OpenAI's names."""
    network = Whisper(ModelDimensions(**dataclasses.asdict(dims)))
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(value.shape, generator=generator) * 0.2 for name, value in network.state_dict().items()}
