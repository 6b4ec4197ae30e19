"""Decoding in flight: rows join the batch at any step, advance together, and leave the moment they end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from asr.decoding import DecodingRules, Row
from asr.errors import OutOfMemoryError, RecognitionError
from asr.kv_cache import KvCache
from asr.lane import Encoded, Lane
from asr.model import Dims
from asr.session import Session
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition

LANES = (1024,)
"""Encoder positions that bound each lane but the last, which takes the rest: every row of a lane is as wide as the
widest, and a step of each lane reads all weights."""


def lane_bounds(dims: Dims) -> tuple[int, ...]:
    """The most positions of a row in each lane."""
    return (*(positions for positions in LANES if positions < dims.n_audio_ctx), dims.n_audio_ctx)


class InFlightDecoder:
    """Decodes rows with one decoder graph. Rows of similar length share a lane, and with it the steps of the graph."""

    def __init__(self, session: Session, tokenizer: Tokenizer, dims: Dims) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._dims = dims
        self._rules = DecodingRules(tokenizer, dims, session.device)
        self._lanes: list[Lane[Row]] = [Lane(dims, bound, session.device, session.dtype) for bound in lane_bounds(dims)]

    @property
    def rows(self) -> int:
        """How many are in flight."""
        return sum(len(lane.rows) for lane in self._lanes)

    def reserve(self, rows: int) -> None:
        """Have the memory for so many rows in every lane from now on. No row may be in flight.

        Raises:
            OutOfMemoryError: the device has no room for them.
        """
        try:
            for lane in self._lanes:
                lane.reserve(rows, self._dims.n_text_ctx)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(f"no room for {rows} rows in flight: {error}") from error

    def detect_languages(self, encoded: Encoded) -> list[str]:
        """The likeliest language of every row, from the token that follows the start of the transcript.

        Raises:
            RecognitionError: the graph failed.
        """
        rows = len(encoded.bias)
        if not self._tokenizer.is_multilingual:
            return ["en"] * rows
        tokens = torch.full((rows, 1), self._tokenizer.sot, device=self._session.device)
        logits, _ = self._read(self._empty_cache(rows), encoded, tokens)
        return [self._rules.likeliest_language(after_start) for after_start in logits]

    def join(
        self, encoded: Encoded, options: Sequence[DecodingOptions], languages: Sequence[str], seconds: Sequence[float]
    ) -> list[Row]:
        """Have rows decoded from now on. Their prompts are read at once, and the rest of their prefixes in the steps
        that they share with all others.

        languages: ISO 639-1 codes, or "" where a row is to hear what is spoken; seconds: of audio in each row, which
        bound its tokens.

        Raises:
            RecognitionError: the graph failed; none has joined.
            torch.OutOfMemoryError: the device has no room for them; none has joined.
        """
        if any(option.prompt.strip() and not language for option, language in zip(options, languages, strict=True)):
            heard = self.detect_languages(encoded)  # beforehand: the prompt would have its say
            languages = [given or found for given, found in zip(languages, heard, strict=True)]
        rows = [self._rules.row(*row) for row in zip(options, languages, seconds, strict=True)]
        cache = self._read_prompts(encoded, rows)
        self._lane_for(encoded).join(rows, encoded, cache)
        return rows

    def step(self) -> list[Row]:
        """Advance every row in flight by a token; → those that have ended, and are in flight no more."""
        return [row for lane in self._lanes if lane.rows for row in self._step(lane)]

    def drop(self, row: Row) -> None:
        """Take a row out, if it is there."""
        for lane in self._lanes:
            if row in lane.rows:
                lane.leave(row)

    def recognition(self, row: Row) -> Recognition:
        """What an ended row has said."""
        return self._rules.recognition(row)

    def _lane_for(self, encoded: Encoded) -> Lane[Row]:
        return next(lane for lane in self._lanes if encoded.positions <= lane.positions)

    def _empty_cache(self, rows: int) -> KvCache:
        return KvCache(self._dims, rows, self._session.device, self._session.dtype)

    def _read_prompts(self, encoded: Encoded, rows: Sequence[Row]) -> KvCache:
        """Read what comes before the start of the transcript; → the keys and values of it."""
        device = self._session.device
        cache = self._empty_cache(len(rows))
        counts = torch.tensor([row.sot_index for row in rows])
        if counts.any():
            tokens = torch.full((len(rows), int(counts.max())), self._tokenizer.eot)
            for index, row in enumerate(rows):
                tokens[index, : row.sot_index] = torch.tensor(row.prefix[: row.sot_index])
                row.read = row.sot_index
            _, new_kv = self._read(cache, encoded, tokens.to(device))
            cache.append(new_kv, counts.to(device))
        return cache

    def _read(self, cache: KvCache, encoded: Encoded, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run the first tokens of a batch; → logits (rows, vocab) float32, after the first of all, and new_kv."""
        outputs = self._session.run(
            {
                "tokens": tokens,
                "past_lengths": cache.lengths,
                "logit_positions": torch.zeros_like(tokens[:, :1]),
                "cross_bias": encoded.bias,
                **cache.tensors(),
                **encoded.cross,
            }
        )
        return outputs["logits"][:, 0].float(), outputs["new_kv"]

    def _step(self, lane: Lane[Row]) -> list[Row]:
        rows = list(lane.rows)
        for row in rows:
            row.steps += 1
            row.beside += len(rows)
        tokens = torch.tensor([[row.next_token] for row in rows], device=self._session.device)
        outputs = None
        with contextlib.suppress(RecognitionError):  # whose traceback would hold what the step had made so far
            outputs = self._run(lane, tokens, slice(None))
        logits, new_kv = outputs or self._run_one_by_one(lane, tokens)
        lane.append(new_kv)
        self._rules.choose(logits, rows)
        ended = [row for row in rows if row.ended]
        for row in ended:
            lane.leave(row)
        return ended

    def _run(self, lane: Lane[Row], tokens: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """→ logits (rows, vocab) float32 and new_kv (layers, 2, rows, heads, 1, head_dim)."""
        wanted = torch.zeros_like(tokens)
        outputs = self._session.run({"tokens": tokens[rows], "logit_positions": wanted[rows], **lane.inputs(rows)})
        return outputs["logits"][:, 0].float(), outputs["new_kv"]

    def _run_one_by_one(self, lane: Lane[Row], tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The step of a lane that failed as a whole: whichever row it fails on has the error."""
        dims = self._dims
        logits = torch.zeros(len(tokens), dims.n_vocab, device=tokens.device)
        shape = (dims.n_text_layer, 2, len(tokens), dims.n_text_head, 1, dims.head_dim)
        new_kv = torch.zeros(shape, device=tokens.device, dtype=self._session.dtype)
        for index, row in enumerate(lane.rows):
            alone = slice(index, index + 1)
            try:
                logits[alone], new_kv[:, :, alone] = self._run(lane, tokens, alone)
            except RecognitionError as error:
                row.error = type(error)(*error.args)  # without the traceback, which holds the lane's tensors
        return logits, new_kv
