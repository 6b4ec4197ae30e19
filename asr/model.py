"""The Whisper network (Radford et al. 2022, arXiv:2212.04356) as two graphs that can be exported.

`Encoder` turns log-mel into the cross-attention keys and values of every decoder layer, once per utterance. `Decoder`
advances any number of tokens per row, for the prompt and for single steps alike. Rows of a batch are independent: each
has its own length, position and masks, so what shares the batch with a row does not change its result.

Tensors of one decoder layer are separate inputs rather than slices of one stacked tensor: a slice inside an ONNX graph
is a copy, and the cross-attention keys and values are the largest thing a step reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MASKED = -1e4
"""Added to the score of a masked position: exp(-1e4) is 0 in float32 and float16 and cannot make a NaN."""


@dataclass(frozen=True)
class Dims:
    """Sizes of a Whisper model, under the names that OpenAI's checkpoints use."""

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int

    @property
    def head_dim(self) -> int:
        return self.n_text_state // self.n_text_head


def encoder_input_names() -> list[str]:
    return ["mel", "frame_counts", "position_ids", "attention_bias"]


def encoder_output_names(dims: Dims) -> list[str]:
    return [f"cross_{part}_{layer}" for layer in range(dims.n_text_layer) for part in ("key", "value")]


def decoder_input_names(dims: Dims) -> list[str]:
    self_names = [f"self_{part}_{layer}" for layer in range(dims.n_text_layer) for part in ("key", "value")]
    return ["tokens", "past_lengths", "logit_positions", "cross_bias", *self_names, *encoder_output_names(dims)]


def decoder_output_names() -> list[str]:
    return ["logits", "new_kv"]


class MultiHeadProjection(nn.Module):
    """Query, key and value projections split into heads. Whisper's keys have no bias."""

    def __init__(self, state: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(state, state)
        self.key = nn.Linear(state, state, bias=False)
        self.value = nn.Linear(state, state)
        self.out = nn.Linear(state, state)

    def split(self, x: Tensor) -> Tensor:
        """(batch, steps, state) → (batch, heads, steps, head_dim)"""
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def scaled_query(self, x: Tensor) -> Tensor:
        query = self.split(self.query(x))
        return query * float(query.shape[-1] ** -0.5)

    def merge(self, x: Tensor) -> Tensor:
        """(batch, heads, steps, head_dim) → (batch, steps, state), projected"""
        projected: Tensor = self.out(x.transpose(1, 2).flatten(2))
        return projected


class FeedForward(nn.Sequential):
    def __init__(self, state: int) -> None:
        super().__init__(nn.Linear(state, 4 * state), nn.GELU(), nn.Linear(4 * state, state))


class EncoderBlock(nn.Module):
    def __init__(self, state: int, heads: int) -> None:
        super().__init__()
        self.attn_ln = nn.LayerNorm(state)
        self.attn = MultiHeadProjection(state, heads)
        self.mlp_ln = nn.LayerNorm(state)
        self.mlp = FeedForward(state)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self._attend(self.attn_ln(x), mask)
        fed_forward: Tensor = self.mlp(self.mlp_ln(x))
        return x + fed_forward

    def _attend(self, x: Tensor, mask: Tensor) -> Tensor:
        query = self.attn.scaled_query(x)
        key, value = self.attn.split(self.attn.key(x)), self.attn.split(self.attn.value(x))
        weights = torch.softmax(query @ key.transpose(-1, -2) + mask, dim=-1)
        return self.attn.merge(weights @ value)


class Encoder(nn.Module):
    """Log-mel → cross-attention keys and values of every decoder layer."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        state = dims.n_audio_state
        self.conv1 = nn.Conv1d(dims.n_mels, state, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(state, state, kernel_size=3, stride=2, padding=1)
        self.positional_embedding = nn.Parameter(torch.empty(dims.n_audio_ctx, state))
        self.blocks = nn.ModuleList(EncoderBlock(state, dims.n_audio_head) for _ in range(dims.n_audio_layer))
        self.ln_post = nn.LayerNorm(state)
        self.cross = nn.ModuleList(MultiHeadProjection(state, dims.n_text_head) for _ in range(dims.n_text_layer))
        for projection in self.cross:  # only keys and values are made here; the decoder owns the other two
            del projection.query, projection.out

    def forward(
        self, mel: Tensor, frame_counts: Tensor, position_ids: Tensor, attention_bias: Tensor
    ) -> tuple[Tensor, ...]:
        """Encode a padded batch.

        mel: (batch, n_mels, 2 * positions) float32; frame_counts: (batch,) int64, the frames of each row that count,
        the rest being ignored; position_ids: (batch, positions) int64, the place of each position in the window;
        attention_bias: (batch, positions) float32, added to the scores of each position as a key, MASKED for padding.
        → for every decoder layer a key (batch, heads, head_dim, positions) and a value (batch, heads, positions,
        head_dim), float32.
        """
        frame_index = torch.arange(mel.shape[-1], device=mel.device)
        frame_mask = (frame_index < frame_counts[:, None])[:, None].to(mel.dtype)
        x = F.gelu(self.conv1(mel * frame_mask)) * frame_mask  # a row ends in the zeros that a lone row is padded with
        x = F.gelu(self.conv2(x)).transpose(1, 2) + self.positional_embedding[position_ids]
        mask = attention_bias[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        x = self.ln_post(x)
        outputs: list[Tensor] = []
        for cross in self.cross:
            assert isinstance(cross, MultiHeadProjection)
            outputs += [cross.split(cross.key(x)).transpose(-1, -2), cross.split(cross.value(x))]
        return tuple(outputs)


class DecoderBlock(nn.Module):
    def __init__(self, state: int, heads: int) -> None:
        super().__init__()
        self.attn_ln = nn.LayerNorm(state)
        self.attn = MultiHeadProjection(state, heads)
        self.cross_attn_ln = nn.LayerNorm(state)
        self.cross_attn = MultiHeadProjection(state, heads)
        del self.cross_attn.key, self.cross_attn.value  # made by the encoder
        self.mlp_ln = nn.LayerNorm(state)
        self.mlp = FeedForward(state)

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor], cross: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """→ the hidden state and this layer's new keys and values, (2, batch, heads, steps, head_dim)."""
        past_mask, causal_mask, cross_mask = masks
        attended, new_kv = self._attend_self(self.attn_ln(x), past, past_mask, causal_mask)
        x = x + attended
        x = x + self._attend_cross(self.cross_attn_ln(x), cross, cross_mask)
        return x + self.mlp(self.mlp_ln(x)), new_kv

    def _attend_self(
        self, x: Tensor, past: tuple[Tensor, Tensor], past_mask: Tensor, causal_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        query = self.attn.scaled_query(x)
        key, value = self.attn.split(self.attn.key(x)), self.attn.split(self.attn.value(x))
        past_key, past_value = past
        scores = torch.cat(  # scores are small; concatenating keys and values would copy the whole cache
            (query @ past_key.transpose(-1, -2) + past_mask, query @ key.transpose(-1, -2) + causal_mask), dim=-1
        )
        weights = torch.softmax(scores, dim=-1)
        capacity = past_key.shape[2]
        attended = weights[..., :capacity] @ past_value + weights[..., capacity:] @ value
        return self.attn.merge(attended), torch.stack((key, value))

    def _attend_cross(self, x: Tensor, cross: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        query = self.cross_attn.scaled_query(x)
        key, value = cross
        weights = torch.softmax(query @ key + mask, dim=-1)
        return self.cross_attn.merge(weights @ value)


class Decoder(nn.Module):
    """Tokens and caches → logits and the new keys and values."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        state = dims.n_text_state
        self.token_embedding = nn.Embedding(dims.n_vocab, state)
        self.positional_embedding = nn.Parameter(torch.empty(dims.n_text_ctx, state))
        self.blocks = nn.ModuleList(DecoderBlock(state, dims.n_text_head) for _ in range(dims.n_text_layer))
        self.ln = nn.LayerNorm(state)

    def forward(
        self, tokens: Tensor, past_lengths: Tensor, logit_positions: Tensor, cross_bias: Tensor, *caches: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advance each row by `steps` tokens.

        tokens: (batch, steps) int64, shorter rows padded at the end with any token; past_lengths: (batch,) int64,
        tokens already in each row's cache; logit_positions: (batch, n) int64, the steps whose logits are wanted;
        cross_bias: (batch, positions) float32, added to the scores of each encoder position, MASKED for padding.
        caches: for every layer self key and value (batch, heads, capacity, head_dim), then for every layer cross key
        (batch, heads, head_dim, positions) and value (batch, heads, positions, head_dim), all float32.
        → logits (batch, n, vocab) float32 and new_kv (layers, 2, batch, heads, steps, head_dim) float32, whose rows go
        into the caches at past_lengths.
        """
        layers = len(self.blocks)
        steps = tokens.shape[1]
        step_index = torch.arange(steps, device=tokens.device)
        positions = (past_lengths[:, None] + step_index).clamp(max=self.positional_embedding.shape[0] - 1)
        x = self.token_embedding(tokens) + self.positional_embedding[positions]
        causal = (step_index > step_index[:, None]).to(x.dtype) * MASKED
        masks = (
            padding_mask(past_lengths, caches[0].shape[2], x.dtype),
            causal,
            cross_bias[:, None, None],
        )
        new_kv = []
        for layer, block in enumerate(self.blocks):
            past = caches[2 * layer : 2 * layer + 2]
            cross = caches[2 * (layers + layer) : 2 * (layers + layer) + 2]
            x, layer_kv = block(x, past, cross, masks)
            new_kv.append(layer_kv)
        wanted = x.gather(1, logit_positions[:, :, None].expand(-1, -1, x.shape[-1]))
        logits = self.ln(wanted) @ self.token_embedding.weight.T
        return logits, torch.stack(new_kv)


def padding_mask(lengths: Tensor, capacity: int, dtype: torch.dtype) -> Tensor:
    """(batch,) lengths → (batch, 1, 1, capacity) added to attention scores: 0 up to the length, MASKED after it."""
    return (torch.arange(capacity, device=lengths.device) >= lengths[:, None])[:, None, None].to(dtype) * MASKED


def build_modules(dims: Dims, weights: Mapping[str, Tensor]) -> tuple[Encoder, Decoder]:
    """Fill both modules from a normalised weight set (OpenAI's parameter names)."""
    with torch.device("meta"):
        encoder, decoder = Encoder(dims), Decoder(dims)
    encoder.load_state_dict(_encoder_state(weights), assign=True)
    decoder.load_state_dict(_decoder_state(weights), assign=True)
    return encoder.eval(), decoder.eval()


CROSS_KEY_VALUE = (".cross_attn.key.", ".cross_attn.value.")


def _encoder_state(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    state = {name.removeprefix("encoder."): value for name, value in weights.items() if name.startswith("encoder.")}
    for name, value in weights.items():
        if any(part in name for part in CROSS_KEY_VALUE):
            state[name.replace("decoder.blocks.", "cross.").replace(".cross_attn.", ".")] = value
    return state


def _decoder_state(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix("decoder."): value
        for name, value in weights.items()
        if name.startswith("decoder.") and not any(part in name for part in CROSS_KEY_VALUE)
    }
