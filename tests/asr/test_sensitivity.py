"""Which products are worth having in int8: pure bisection, and a real model of which most products are held back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from asr.build.artefacts import ensure_artefacts
from asr.build.calibration import Recording, read_recordings
from asr.build.per_token import has_exact_u8s8, quantize_per_token
from asr.build.products import products_of
from asr.build.recipe import Recipe
from asr.build.sensitivity import Choice, Group, choose_placement, groups_of, largest_within
from tests.asr.calibration_set import write_calibration_set
from tests.asr.reference import LoadedModel

Quantize: TypeAlias = Callable[[str, frozenset[str]], ModelProto]

# --- bisection


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 57, 64])
def test_the_largest_of_all_counts(count: int) -> None:
    """Wherever the limit is, in a number of tries that is logarithmic, each another one."""
    for limit in range(count + 1):
        tried: list[int] = []

        def is_within(quantized: int, limit: int = limit, tried: list[int] = tried) -> bool:
            tried.append(quantized)
            return quantized <= limit

        assert largest_within(count, is_within) == limit
        assert len(tried) <= 1 + math.ceil(math.log2(max(count, 1)))
        assert len(set(tried)) == len(tried)


def test_everything_at_once_is_tried_first() -> None:
    tried: list[int] = []

    def is_within(quantized: int) -> bool:
        tried.append(quantized)
        return True

    assert largest_within(57, is_within) == 57
    assert tried == [57]


# --- groups


def test_query_and_key_go_together() -> None:
    names = [f"blocks.0.attn.{part}" for part in ("query", "key", "value", "out")]
    names += ["blocks.0.cross_attn.query", "blocks.0.cross_attn.out", "blocks.0.mlp.0", "blocks.1.attn.key", "head"]

    assert groups_of("decoder", names) == [
        Group("decoder.blocks.0.attn.query_key", "decoder", frozenset({"blocks.0.attn.query", "blocks.0.attn.key"})),
        *(
            Group(f"decoder.{name}", "decoder", frozenset({name}))
            for name in (
                "blocks.0.attn.value",
                "blocks.0.attn.out",
                "blocks.0.cross_attn.query",
                "blocks.0.cross_attn.out",
                "blocks.0.mlp.0",
            )
        ),
        Group("decoder.blocks.1.attn.query_key", "decoder", frozenset({"blocks.1.attn.key"})),
        Group("decoder.head", "decoder", frozenset({"head"})),
    ]


def test_groups_of_the_encoder() -> None:
    assert groups_of("encoder", ["cross.0.key", "cross.0.value"]) == [
        Group("encoder.cross.0.key", "encoder", frozenset({"cross.0.key"})),
        Group("encoder.cross.0.value", "encoder", frozenset({"cross.0.value"})),
    ]
    assert groups_of("encoder", []) == []


# --- a real model

CANDIDATES = {
    "encoder": frozenset({"blocks.1.attn.query", "blocks.1.attn.key", "blocks.2.mlp.0"}),
    "decoder": frozenset({"blocks.0.mlp.2", "blocks.3.cross_attn.query"}),
}
"""Few, so that few groups have to be measured."""

TYPICAL = {"encoder": 400, "decoder": 25}
"""Positions and tokens of 8 s of speech, by which every product is multiplied."""

GROUPS = {
    "encoder.blocks.1.attn.query_key": 2 * 384 * 384 * 400,
    "encoder.blocks.2.mlp.0": 384 * 1536 * 400,
    "decoder.blocks.0.mlp.2": 1536 * 384 * 25,
    "decoder.blocks.3.cross_attn.query": 384 * 384 * 25,
}
"""Name → multiplications for 8 s of speech."""


@pytest.fixture(scope="module")
def graphs(tiny_en: LoadedModel, artefact_cache: Path) -> dict[str, Path]:
    artefacts = ensure_artefacts(tiny_en.checkpoint, Recipe("fp32"), artefact_cache)
    return {"encoder": artefacts.encoder, "decoder": artefacts.decoder}


@pytest.fixture(scope="module")
def recordings(speech: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> list[Recording]:
    return read_recordings(write_calibration_set(tmp_path_factory.mktemp("recordings"), speech))


@pytest.fixture(scope="module")
def int8(graphs: Mapping[str, Path]) -> Quantize:
    return lambda graph, names: quantize_per_token(onnx.load(graphs[graph]), names, signed_weights=has_exact_u8s8())


def ruining(quantize: Quantize, graph: str, product: str) -> Quantize:
    """The same, but whatever has this product in it can recognise nothing any more."""

    def quantize_or_ruin(wanted: str, names: frozenset[str]) -> ModelProto:
        if wanted != graph or product not in names:
            return quantize(wanted, names)
        model = quantize(wanted, names - {product})
        [node] = [node for node in model.graph.node if node.name == product]
        [matrix] = [tensor for tensor in model.graph.initializer if tensor.name == node.input[1]]
        noise = np.random.default_rng(0).standard_normal(tuple(matrix.dims)).astype(np.float32)
        matrix.CopyFrom(numpy_helper.from_array(noise, matrix.name))
        return model

    return quantize_or_ruin


@pytest.fixture(scope="module")
def choose(tiny_en: LoadedModel, graphs: Mapping[str, Path], recordings: list[Recording]) -> Callable[..., Choice]:
    """choose_placement without a limit, unless one is given."""
    return partial(
        choose_placement,
        tiny_en.checkpoint,
        graphs,
        CANDIDATES,
        recordings=recordings,
        max_error_increase=math.inf,
        max_divergence=math.inf,
        threads=1,
    )


@pytest.fixture(scope="module")
def unlimited(choose: Callable[..., Choice], int8: Quantize) -> Choice:
    return choose(int8)


def test_without_a_limit_everything_is_quantized(unlimited: Choice) -> None:
    [trial] = unlimited.trials

    assert unlimited.placement == CANDIDATES
    assert (unlimited.quantized, trial.quantized) == (len(GROUPS), len(GROUPS))
    assert trial.share == pytest.approx(sum(one.share for one in unlimited.order))
    assert unlimited.float_error_rate < 10


def test_the_order_is_by_cost_for_the_work_saved(unlimited: Choice, graphs: Mapping[str, Path]) -> None:
    ratios = [sensitivity.divergence / sensitivity.share for sensitivity in unlimited.order]
    all_work = sum(
        product.weight.size * TYPICAL[graph]
        for graph, path in graphs.items()
        for product in products_of(onnx.load(path)).values()
    )

    assert ratios == sorted(ratios)
    assert {one.group: one.share for one in unlimited.order} == pytest.approx(
        {name: size / all_work for name, size in GROUPS.items()}
    )
    for sensitivity in unlimited.order:
        assert 1e-8 < sensitivity.divergence < 0.05, sensitivity


def test_what_ruins_the_model_stays_out(choose: Callable[..., Choice], int8: Quantize) -> None:
    """Though it would save the most work, and nothing else stays out, though no error more is allowed."""
    ruined = "blocks.2.mlp.0"
    choice = choose(ruining(int8, "encoder", ruined), max_error_increase=0)

    assert choice.placement == {**CANDIDATES, "encoder": CANDIDATES["encoder"] - {ruined}}
    assert choice.order[-1].group == f"encoder.{ruined}"
    assert choice.order[-1].divergence > 100 * choice.order[-2].divergence
    assert (choice.quantized, [trial.quantized for trial in choice.trials]) == (3, [4, 2, 3])
    first, last = choice.trials[0].error_rate, choice.trials[-1].error_rate
    assert first is not None
    assert first > choice.float_error_rate == last
    assert choice.trials[-1].share == pytest.approx(sum(one.share for one in choice.order[:-1]))


def test_divergence_alone_keeps_a_product_out(choose: Callable[..., Choice], int8: Quantize, unlimited: Choice) -> None:
    """However many errors are allowed: a set of a few words would not show what it costs."""
    allowed = unlimited.trials[0].divergence / 2
    choice = choose(int8, max_divergence=allowed)

    assert 0 < choice.quantized < len(GROUPS)
    assert choice.trials[0].error_rate is None
    assert all((trial.error_rate is None) == (trial.divergence > allowed) for trial in choice.trials)


def test_a_manifest_can_hold_it(unlimited: Choice) -> None:
    read = json.loads(json.dumps(unlimited.as_json()))

    assert [entry["group"] for entry in read["order"]] == [one.group for one in unlimited.order]
    assert read["trials"] == [asdict(unlimited.trials[0])]
    assert read["trials"][0].keys() == {"quantized", "share", "divergence", "error_rate"}
    assert read["quantized"] == 4
    assert read["float_error_rate"] == unlimited.float_error_rate
