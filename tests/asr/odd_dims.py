"""Sizes of a model of which no two could be mistaken for each other."""

from __future__ import annotations

from asr.model import Dims

ODD_DIMS = Dims(7, 20, 24, 3, 2, 101, 12, 24, 3, 5)
