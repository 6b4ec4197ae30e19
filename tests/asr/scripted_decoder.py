"""A decoder that says what it is told to, in exact probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from asr.checkpoint.vocabulary import published_vocabulary
from asr.in_flight import InFlightDecoder
from asr.lane import Encoded
from asr.model import Dims
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition
from tests.asr.decoded_rows import decoded

CPU = torch.device("cpu")
PREFIX = 4
"""Tokens that a row of a multilingual model reads before it speaks, where there is no prompt."""
DIMS = Dims(80, 1500, 1, 1, 1, 51_865, 448, 1, 1, 1)

Script: TypeAlias = Mapping[int, Mapping[int, float]]
"""What a row's model hears: token that was read → probability of each token after it. Anything may follow a special
token that is not in it.
"""


def tokenizer_of(dims: Dims) -> Tokenizer:
    vocabulary = published_vocabulary(dims.n_vocab)
    assert vocabulary is not None, "openai-whisper, which has the vocabularies, is not installed"
    return Tokenizer(vocabulary, dims.n_vocab)


class ScriptedSession:
    """A decoder that reads from a script. Each row has its number wherever it has a value of its own, and remembers
    the tokens that it has read as their keys and values: if rows were mixed up, the session would notice.
    """

    device = CPU
    dtype = torch.float32

    def __init__(self, n_vocab: int, *scripts: Script) -> None:
        self.n_vocab = n_vocab
        self.end = 50_257 if n_vocab > 51_864 else 50_256
        """The end of a text, with which shorter rows are filled up, and the first of the tokens that are no words."""
        self.scripts = scripts
        self.batches: list[list[int]] = []
        self.read: dict[int, list[int]] = {row: [] for row in range(len(scripts))}

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tokens, wanted = inputs["tokens"], inputs["logit_positions"]
        rows = rows_of(inputs)
        logits = torch.full((*wanted.shape, self.n_vocab), -torch.inf)
        for index, row in enumerate(rows):
            past = int(inputs["past_lengths"][index])
            for part in ("self_key_0", "self_value_0"):
                assert inputs[part][index, 0, :past, 0].tolist() == self.read[row][:past]
            self.read[row] = self.read[row][:past] + [token for token in tokens[index].tolist() if token != self.end]
            for place, position in enumerate(wanted[index].tolist()):
                script, token = self.scripts[row], int(tokens[index, position])
                if token >= self.end and token not in script:
                    logits[index, place] = 0.0
                    continue
                for after, probability in script[token].items():
                    logits[index, place, after] = math.log(probability)
        self.batches.append(rows)
        return {"logits": logits, "new_kv": tokens.float()[None, None, :, None, :, None].repeat(1, 2, 1, 1, 1, 1)}


def rows_of(inputs: Mapping[str, Tensor]) -> list[int]:
    """The numbers of the rows."""
    numbers, keys, values = inputs["cross_bias"][:, 0], inputs["cross_key_0"], inputs["cross_value_0"]
    assert all(value.is_contiguous() for value in inputs.values())
    assert keys[:, 0, 0, 0].tolist() == values[:, 0, 0, 0].tolist() == numbers.tolist()
    return numbers.int().tolist()


def encoded(*numbers: int, positions: int = 4) -> Encoded:
    """Rows of these numbers."""
    bias = torch.tensor(numbers, dtype=torch.float32)[:, None].repeat(1, positions)
    return Encoded(
        {"cross_key_0": bias[:, None, None, :].clone(), "cross_value_0": bias[:, None, :, None].clone()}, bias
    )


class Words:
    """Some tokens of the multilingual vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.start, self.end, self.begin = tokenizer.sot, tokenizer.eot, tokenizer.no_timestamps
        self.a, self.b, self.c = (tokenizer.encode(word)[0] for word in (" good", " day", " all"))
        self.blank = tokenizer.encode(" ")[0]
        self.heard = {self.start: {tokenizer.no_speech: 0.25, self.a: 0.75}}  # speech, by three to one

    def all_of(self, words: Sequence[int], probability: float = 1.0) -> Script:
        """The script that says these words and ends; each, and the end, where `c` is all else that is possible."""
        said = zip([self.begin, *words], [*words, self.end], strict=True)
        return {
            **self.heard,
            **{token: {self.c: max(1 - probability, 1e-30), after: probability} for token, after in said},
        }


def decode(
    tokenizer: Tokenizer,
    *scripts: Script,
    options: DecodingOptions = DecodingOptions(),
    seconds: float = 1.0,
) -> list[Recognition]:
    decoder = InFlightDecoder(ScriptedSession(DIMS.n_vocab, *scripts), tokenizer, DIMS)
    rows = len(scripts)
    return decoded(decoder, encoded(*range(rows)), [options] * rows, ["en"] * rows, [seconds] * rows)
