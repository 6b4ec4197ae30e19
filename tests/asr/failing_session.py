"""A session that fails on the utterances that are marked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from asr.errors import RecognitionError
from asr.session import Session
from asr.utterance import Utterance


class FailingSession:
    """The real session, but for batches in which some row's first value is the mark."""

    MARK = 0.123

    def __init__(self, session: Session) -> None:
        self._session = session
        self.device, self.dtype = session.device, session.dtype
        self.runs = 0

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.runs += 1
        if bool((inputs["mel"][:, 0, 0] == torch.tensor(self.MARK)).any()):
            raise RecognitionError("out of memory")
        return self._session.run(inputs)


def marked(utterance: Utterance) -> Utterance:
    log_mel = utterance.log_mel.copy()
    log_mel[0, 0] = FailingSession.MARK
    return replace(utterance, log_mel=log_mel)
