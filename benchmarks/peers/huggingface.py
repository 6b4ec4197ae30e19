"""Hugging Face transformers: the network in PyTorch in float32, greedy, in batches over the whole window of 30 s.

It does what its speech recognition pipeline does with recordings of up to 30 s; longer ones are cut in their pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from asr.checkpoint import load_checkpoint
from asr.checkpoint.huggingface import TIED_HEAD, normalised_name
from asr.features import SAMPLE_RATE
from asr.model import Dims
from asr.processors import usable_cpus
from asr.tokenizer import Tokenizer
from benchmarks.peers.peer import BATCH, Load, Transcribe, needs
from benchmarks.peers.windows import Window, over_windows


def full_window(rows: int = BATCH) -> Load:
    """transformers with batches of so many rows."""

    @contextmanager
    def load(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:  # noqa: ARG001 (it builds nothing)
        recognizer = _load(model)
        threads = torch.get_num_threads()
        torch.set_num_threads(usable_cpus())
        try:
            yield over_windows(recognizer.texts, rows)
        finally:
            torch.set_num_threads(threads)

    return load


class Recognizer:
    """A batch of windows in one language → texts."""

    def __init__(self, network: Any, feature_extractor: Any, tokenizer: Tokenizer) -> None:
        self._network = network
        self._feature_extractor = feature_extractor
        self._tokenizer = tokenizer

    def texts(self, windows: Sequence[Window]) -> list[str]:
        waveforms = [window.waveform for window in windows]
        features = self._feature_extractor(
            waveforms, sampling_rate=SAMPLE_RATE, return_attention_mask=True, return_tensors="pt"
        )
        options = {"language": windows[0].language, "task": "transcribe"} if self._tokenizer.is_multilingual else {}
        with torch.inference_mode():
            tokens = self._network.generate(**features, **options)
        return [self._tokenizer.decode(row) for row in tokens.tolist()]


def _load(model: str) -> Recognizer:
    """
    Raises:
        UnavailableError: the package cannot be imported.
    """
    with needs("transformers"):
        from transformers import (
            GenerationConfig,
            WhisperConfig,
            WhisperFeatureExtractor,
            WhisperForConditionalGeneration,
        )
    checkpoint = load_checkpoint(model)
    weights = checkpoint.read_weights()
    with torch.device("meta"):
        network: Any = WhisperForConditionalGeneration(WhisperConfig(**_sizes(checkpoint.dims)))
    parameters = {name: weights[normalised_name(name)] for name in network.state_dict() if name != TIED_HEAD}
    parameters[TIED_HEAD] = weights["decoder.token_embedding.weight"]
    network.load_state_dict(parameters, assign=True)
    network.tie_weights()
    network.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        **_generation(checkpoint.tokenizer, checkpoint.dims)
    )
    extractor = WhisperFeatureExtractor(feature_size=checkpoint.dims.n_mels)  # type: ignore[no-untyped-call]
    return Recognizer(network.eval(), extractor, checkpoint.tokenizer)


def _sizes(dims: Dims) -> dict[str, Any]:
    return {
        "vocab_size": dims.n_vocab,
        "num_mel_bins": dims.n_mels,
        "d_model": dims.n_audio_state,
        "encoder_layers": dims.n_audio_layer,
        "encoder_attention_heads": dims.n_audio_head,
        "encoder_ffn_dim": 4 * dims.n_audio_state,
        "decoder_layers": dims.n_text_layer,
        "decoder_attention_heads": dims.n_text_head,
        "decoder_ffn_dim": 4 * dims.n_text_state,
        "max_source_positions": dims.n_audio_ctx,
        "max_target_positions": dims.n_text_ctx,
    }


def _generation(tokenizer: Tokenizer, dims: Dims) -> dict[str, Any]:
    """What the generation_config.json of a published model says."""
    special: dict[str, Any] = {
        "decoder_start_token_id": tokenizer.sot,
        "eos_token_id": tokenizer.eot,
        "pad_token_id": tokenizer.eot,
        "suppress_tokens": list(tokenizer.suppressed_tokens),
        "begin_suppress_tokens": list(tokenizer.suppressed_at_start),
        "no_timestamps_token_id": tokenizer.no_timestamps,
        "is_multilingual": tokenizer.is_multilingual,
        "max_length": dims.n_text_ctx,
        "return_timestamps": False,
    }
    if tokenizer.is_multilingual:
        special["lang_to_id"] = {f"<|{code}|>": tokenizer.language_token(code) for code in tokenizer.languages}
        special["task_to_id"] = {"transcribe": tokenizer.transcribe, "translate": tokenizer.translate}
    return special
