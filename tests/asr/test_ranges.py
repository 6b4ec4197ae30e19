"""One int8 range for the values of an activation: the largest, or by entropy, and what rounding in it costs."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.build.calibration import Activation, Observer
from asr.build.recipe import RangeMethod

Samples: TypeAlias = NDArray[np.float32]


def activation_of(values: Samples, method: RangeMethod) -> Activation:
    """Seen in two parts."""
    observer = Observer(method)
    for part in np.array_split(values, 2):
        observer.add(part)
    return observer.activation()


def by_tensorrt(values: Samples, bins: int = 2048, levels: int = 128) -> float:
    """The range of least divergence, as Migacz's slides describe it (2017, "8-bit Inference with TensorRT")."""
    counts, edges = np.histogram(np.abs(values), bins)
    divergences = {}
    for end in range(levels, bins + 1):
        inside, p = counts[:end], counts[:end].astype(float)
        p[-1] += counts[end:].sum()
        level = np.arange(end) * levels // end
        filled = np.bincount(level, p > 0, levels)
        q = np.where(p > 0, (np.bincount(level, inside, levels) / np.maximum(filled, 1))[level], 0) + 1e-4
        p, q = p / p.sum(), q / q.sum()
        divergences[end] = float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())
    return float(edges[min(divergences, key=divergences.__getitem__)])


SHAPE = (4096, 16)
NOISES = {
    "uniform": np.random.default_rng(0).uniform(-1, 1, SHAPE).astype(np.float32),
    "normal": np.random.default_rng(0).normal(0, 1, SHAPE).astype(np.float32),
    "laplace": np.random.default_rng(0).laplace(0, 1, SHAPE).astype(np.float32),
}


@pytest.mark.parametrize("kind", NOISES)
def test_ranges(kind: str) -> None:
    values = NOISES[kind]
    most = float(np.abs(values).max())

    assert activation_of(values, "max").range == most
    assert activation_of(values, "entropy").range == pytest.approx(by_tensorrt(values), rel=0.15)


def test_an_outlier_is_clipped_by_entropy_alone() -> None:
    values = NOISES["normal"].copy()
    values[7, 3] = -60

    assert activation_of(values, "max").range == 60
    assert activation_of(values, "entropy").range < 15


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_signal_to_noise(kind: str, size: float) -> None:
    """As it is after really rounding."""
    values = NOISES[kind] * np.float32(size)
    activation = activation_of(values, "max")
    step = activation.range / 127
    error = np.rint(values / step) * step - values
    measured = 10 * np.log10(np.square(values).sum() / np.square(error).sum())

    assert activation.signal_to_noise_db == pytest.approx(measured, abs=0.1)


@pytest.mark.parametrize("method", ["max", "entropy"])
def test_what_is_always_zero_has_no_noise(method: RangeMethod) -> None:
    activation = activation_of(np.zeros((8, 4), np.float32), method)

    assert (activation.range, activation.signal_to_noise_db) == (0, np.inf)
