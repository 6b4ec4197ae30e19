"""How plots are written."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

FORMATS = ("png", "svg")


def save(figure: Figure, stem: Path) -> None:
    """Write <stem>.png and <stem>.svg; the same drawing is the same file."""
    with mpl.rc_context({"svg.hashsalt": "rayscribe"}):
        for suffix in FORMATS:
            metadata = {"Date": None} if suffix == "svg" else None
            figure.savefig(stem.with_name(f"{stem.name}.{suffix}"), dpi=150, metadata=metadata)
