"""Where a request's time went, by its `Server-Timing` header (https://www.w3.org/TR/server-timing).

Rayscribe's names `read`, `prepare`, `queue`, `encode`, `recognize` and `assemble`, each with a duration in ms; `total`,
the time inside the ingress; and `rows`, whose description is the mean number of utterances decoded at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

TOTAL = "total"
ROWS = "rows"
QUOTED = r'"(?:\\.|[^"\\])*"'
ENTRY = re.compile(rf'(?:{QUOTED}|[^,"])+')
PARAMETER = re.compile(rf'(?:{QUOTED}|[^;"])+')


@dataclass(frozen=True)
class ServerTiming:
    """stages_ms: in the order of the header, the total not among them; rows: decoded at a time, if that was said."""

    stages_ms: Mapping[str, float] = field(default_factory=dict)
    rows: float | None = None


def parse_server_timing(header: str) -> ServerTiming:
    """What is not a number is left out."""
    stages_ms: dict[str, float] = {}
    rows = None
    for name, parameters in _entries(header):
        duration, described = (_number(parameters.get(key, "")) for key in ("dur", "desc"))
        if name == ROWS:
            rows = described
        elif name != TOTAL and duration is not None:
            stages_ms[name] = duration
    return ServerTiming(stages_ms, rows)


def _entries(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """→ name and parameters of each; of parameters with the same name the first counts."""
    for entry in ENTRY.findall(header):
        name, *pairs = (part.strip() for part in PARAMETER.findall(entry) or [""])
        parameters: dict[str, str] = {}
        for key, _, value in (pair.partition("=") for pair in pairs):
            parameters.setdefault(key.strip().lower(), value.strip().strip('"'))
        yield name.lower(), parameters


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
