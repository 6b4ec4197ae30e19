"""What must not be exceeded, and whether it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.tables import table


@dataclass(frozen=True)
class Bound:
    """value: what was measured; most: what it may be."""

    title: str
    value: float
    most: float

    @property
    def holds(self) -> bool:
        return self.value <= self.most


def bound_table(bounds: Sequence[Bound]) -> str:
    rows = [
        [bound.title, f"{bound.value:.6g}", f"{bound.most:g}", "yes" if bound.holds else "**no**"] for bound in bounds
    ]
    return table(["", "measured", "at most", "holds"], rows)
