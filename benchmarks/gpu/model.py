"""What a GPU is checked with, out of nothing but this repository: networks, and something like speech for them to hear.

Trained weights and recorded speech are taken where the packages are installed that carry them. Without those, weights
are drawn so that activations stay within float16's range and what is said depends on what is heard.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from asr.audio import decode_audio
from asr.checkpoint import embedded, load_checkpoint
from asr.features import FRAMES_PER_SECOND, SAMPLE_RATE, LogMel
from asr.model import Decoder, Dims, Encoder
from asr.roofline import MODELS
from asr.sessions.pytorch import TorchSession, torch_sessions
from asr.tokenizer import ENGLISH_VOCABULARY, Tokenizer, text_token_count
from asr.transcript import DecodingOptions
from asr.utterance import Utterance

CHECKED = "tiny.en"
QUICK_DIMS = Dims(80, 1500, 32, 2, 2, ENGLISH_VOCABULARY, 448, 32, 2, 2)
SECONDS = (4.2, 1.0, 6.5, 2.4)
EMBEDDING_DEVIATION = 0.05  # small beside what the layers add, else a network repeats the token that it was given
ATTENTION_GAIN = 2.0  # makes attention choose, where it would average all that is heard

SYLLABLES_PER_SECOND = 4.0
FORMANTS = (0.12, 0.35, 0.65)  # of the mel bands
QUIET, LOUD = -0.8, 1.4  # of log-mel as the network takes it


@dataclass(frozen=True)
class Model:
    """encoder, decoder: float32, on the CPU; trained: whether the weights are real ones."""

    name: str
    dims: Dims
    tokenizer: Tokenizer
    encoder: Encoder
    decoder: Decoder
    trained: bool

    def sessions(self, device: torch.device, dtype: torch.dtype) -> tuple[TorchSession, TorchSession]:
        """Encoder and decoder, of copies of the networks."""
        encoder, decoder = copy.deepcopy(self.encoder), copy.deepcopy(self.decoder)
        return torch_sessions(encoder.to(dtype), decoder.to(dtype), self.dims, device)


def checked_model(*, quick: bool) -> Model:
    """tiny.en, with its weights if they are installed; quick: one that is far smaller."""
    if not quick and embedded.is_installed(CHECKED):
        checkpoint = load_checkpoint(CHECKED)
        return Model(CHECKED, checkpoint.dims, checkpoint.tokenizer, *checkpoint.modules(), trained=True)
    dims = QUICK_DIMS if quick else MODELS[CHECKED]
    tokenizer = Tokenizer(made_up_vocabulary(dims.n_vocab), dims.n_vocab)
    name = "a toy" if quick else CHECKED
    return Model(name, dims, tokenizer, *random_networks(dims, torch.device("cpu")), trained=False)


def made_up_vocabulary(n_vocab: int) -> list[bytes]:
    """Every byte, and names of numbers for the rest: what random weights say means nothing anyway."""
    return [bytes([token]) if token < 256 else b"<%d>" % token for token in range(text_token_count(n_vocab))]


def random_networks(dims: Dims, device: torch.device) -> tuple[Encoder, Decoder]:
    """float32 networks with weights that are the same in every run on the same kind of device."""
    with torch.device("meta"):
        encoder, decoder = Encoder(dims), Decoder(dims)
    generator = torch.Generator(device).manual_seed(0)
    for network in (encoder, decoder):
        network.to_empty(device=device)
        nn.init.normal_(network.positional_embedding, std=0.5, generator=generator)
        for name, module in network.named_modules():
            _draw(name, module, generator)
    return encoder.eval(), decoder.eval()


def _draw(name: str, module: nn.Module, generator: torch.Generator) -> None:
    if isinstance(module, nn.LayerNorm):
        module.reset_parameters()
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=EMBEDDING_DEVIATION, generator=generator)
    elif isinstance(module, nn.Linear | nn.Conv1d):
        gain = ATTENTION_GAIN if name.endswith((".query", ".key")) else 1.0
        nn.init.normal_(module.weight, std=gain / math.sqrt(module.weight[0].numel()), generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def utterances(n_mels: int) -> list[Utterance]:
    """Of different lengths, of recorded speech if there is some."""
    samples, log_mel = recorded_speech(), LogMel(n_mels)
    ends = np.cumsum(SECONDS)
    if samples is None or len(samples) < ends[-1] * SAMPLE_RATE:
        features = [speech_like(n_mels, seconds, seed) for seed, seconds in enumerate(SECONDS)]
    else:
        cuts = np.split(samples, np.round(ends * SAMPLE_RATE).astype(int))[: len(SECONDS)]
        features = [log_mel(cut) for cut in cuts]
    return [Utterance(feature, DecodingOptions(language="en")) for feature in features]


def recorded_speech() -> NDArray[np.float32] | None:
    """(samples,) at 16 kHz: the recording in the package moonshine-voice, if that is installed."""
    spec = importlib.util.find_spec("moonshine_voice")
    path = Path(spec.origin).parent / "assets" / "two_cities.wav" if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        return None
    return decode_audio(path.read_bytes())


def speech_like(n_mels: int, seconds: float, seed: int) -> NDArray[np.float32]:
    """Formants that wander, swelling with each syllable, over noise: (n_mels, frames) float32, the same every time."""
    generator = np.random.default_rng(seed)
    frames = round(seconds * FRAMES_PER_SECOND)
    turns = 2 * math.pi * np.arange(frames) / FRAMES_PER_SECOND
    syllables = np.clip(np.sin(turns * SYLLABLES_PER_SECOND + generator.uniform(0, 6)), 0, None)
    bands = np.arange(n_mels)[:, None] / n_mels
    features = QUIET + 0.1 * generator.standard_normal((n_mels, frames))
    for formant in FORMANTS:
        centre = formant + 0.08 * np.sin(turns * generator.uniform(0.5, 2.0) + generator.uniform(0, 6))
        features += (LOUD - QUIET) * syllables * np.exp(-(((bands - centre) / 0.05) ** 2))
    return features.clip(QUIET, LOUD).astype(np.float32)


def describe(model: Model, heard: Sequence[Utterance]) -> str:
    weights = "trained" if model.trained else "random"
    speech = "synthetic" if recorded_speech() is None else "recorded"
    return f"{model.name}, {weights} weights, {len(heard)} utterances of {speech} speech"
