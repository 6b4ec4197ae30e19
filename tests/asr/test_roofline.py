"""Lower bounds of Whisper's time: the arithmetic, against the networks themselves."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from asr.checkpoint import load_checkpoint
from asr.devices import GPUS, Device
from asr.floors import GPU_PRECISIONS
from asr.model import Decoder, Dims, Encoder
from asr.roofline import (
    MODELS,
    PRECISIONS,
    decoder_flops,
    decoder_parameters,
    decoder_step_bytes,
    encoder_bytes,
    encoder_flops,
    encoder_parameters,
    floor,
    key_value_bytes,
    mean_length,
)
from tests.asr.odd_dims import ODD_DIMS

NETWORKS = [ODD_DIMS, MODELS["tiny.en"], MODELS["large-v3-turbo"]]
FP16 = PRECISIONS["fp16"]

PUBLISHED = {  # millions of parameters, as its makers round them (openai/whisper, README); mel bands; vocabulary
    "tiny": (39, 80, 51_865),
    "base.en": (74, 80, 51_864),
    "small": (244, 80, 51_865),
    "medium.en": (769, 80, 51_864),
    "large-v2": (1550, 80, 51_865),
    "large-v3": (1550, 128, 51_866),
    "turbo": (809, 128, 51_866),
}


def parameter_count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("dims", NETWORKS)
def test_parameters_are_those_of_the_networks(dims: Dims) -> None:
    with torch.device("meta"):
        encoder, decoder = Encoder(dims), Decoder(dims)

    for counted, network in ((encoder_parameters(dims), encoder), (decoder_parameters(dims), decoder)):
        matrices = sum(
            weight.numel() for name, weight in network.named_parameters() if weight.dim() > 1 and "emb" not in name
        )
        assert counted.matrices == matrices
        assert counted.positions == network.positional_embedding.numel()
        assert counted.matrices + counted.others + counted.positions == parameter_count(network)


@pytest.mark.parametrize("dims", NETWORKS)
@pytest.mark.parametrize("positions", [1, 13])
def test_encoder_flops_are_those_that_torch_counts(dims: Dims, positions: int) -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        mel, frame_counts = torch.empty(3, dims.n_mels, 2 * positions), torch.ones(3, dtype=torch.int64)
        position_ids = torch.ones(3, positions, dtype=torch.int64)
        Encoder(dims)(mel, frame_counts, position_ids, torch.empty(3, positions))

    assert encoder_flops(dims, positions).times(3).total == counter.get_total_flops()


@pytest.mark.parametrize("dims", NETWORKS)
@pytest.mark.parametrize("past", [0, 11])
def test_decoder_flops_are_those_that_torch_counts(dims: Dims, past: int) -> None:
    positions, heads, width = 13, dims.n_text_head, dims.head_dim
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        own = [torch.empty(3, heads, past, width)] * (2 * dims.n_text_layer)
        cross = [torch.empty(3, heads, width, positions), torch.empty(3, heads, positions, width)] * dims.n_text_layer
        tokens, lengths = torch.ones(3, 1, dtype=torch.int64), torch.ones(3, dtype=torch.int64)
        Decoder(dims)(tokens, lengths, tokens, torch.empty(3, positions), *own, *cross)

    assert decoder_flops(dims, positions=positions, length=past + 1).times(3).total == counter.get_total_flops()


def test_flops_of_tiny_by_hand() -> None:
    state, layers, positions = 384, 4, 1500
    encoder = encoder_flops(MODELS["tiny"], positions)
    decoder = decoder_flops(MODELS["tiny"], positions=positions, length=50)

    convolutions = 2 * (3000 * 3 * 80 * state + positions * 3 * state * state)
    assert encoder.matrices == convolutions + 2 * positions * (layers * 12 + layers * 2) * state**2 == 26_652_672_000
    assert encoder.others == 2 * layers * 2 * positions * positions * state == 13_824_000_000
    assert decoder.matrices == 2 * layers * 14 * state**2 == 16_515_072
    assert decoder.others == 2 * 51_865 * state + 2 * layers * 2 * (50 + positions) * state == 49_355_520


def test_bytes_of_small_by_hand() -> None:
    dims, length = MODELS["small"], mean_length(100)
    weights, with_a_row = (
        decoder_step_bytes(dims, FP16, batch=batch, positions=1500, length=length) for batch in (0, 1)
    )

    assert length == 53.5
    assert weights == 2 * (51_865 * 768 + 12 * 14 * 768**2 + 12 * 16 * 768 + 2 * 768) == 278_143_488
    assert with_a_row - weights == key_value_bytes(dims, FP16, positions=1500, length=length) == 57_268_224
    encoding, encoding_two = (encoder_bytes(dims, FP16, batch=batch, positions=1500) for batch in (1, 2))
    assert encoding_two - encoding == 80 * 3000 * 2 + 2 * 12 * 768 * 1500 * 2


@pytest.mark.parametrize(
    ("precision", "positions", "milliseconds"),
    [
        ("fp32", 1500, [257, 105, 94, 89]),
        ("fp16", 1500, [111, 34.7, 29.3, 26.6]),
        ("fp16", 500, [95, 18.9, 13.5, 10.8]),
        ("int8-weights", 1500, [79.8, 30.8, 27.3, 25.6]),
        ("int8", 1500, [77, 28.5, 25.0, 23.3]),
        ("int8-kv", 1500, [68, 19.5, 16.1, 14.3]),
    ],
)
def test_whisper_small_on_a_t4(precision: str, positions: int, milliseconds: list[float]) -> None:
    bounds = [
        floor(MODELS["small"], GPUS["t4"], PRECISIONS[precision], batch=batch, positions=positions, tokens=100)
        for batch in (1, 8, 16, 32)
    ]

    assert [bound.row_ms for bound in bounds] == pytest.approx(milliseconds, rel=0.01)
    assert {(bound.encoder.bound, bound.step.bound) for bound in bounds} == {("compute", "memory")}


@pytest.mark.parametrize("limit", ["compute", "memory"])
def test_a_stage_takes_the_longer_of_arithmetic_and_memory(limit: str) -> None:
    rows = {"batch": 3, "positions": 13}
    slow, fast = 1e6, 1e30
    peak = slow if limit == "compute" else fast
    device = Device("", slow if limit == "memory" else fast, {"fp32": fast, "fp16": peak, "int8": fast}, memory=1)

    bound = floor(ODD_DIMS, device, FP16, **rows, tokens=4)

    steps = 4 * decoder_flops(ODD_DIMS, positions=13, length=5.5).times(3).total
    moved = 4 * decoder_step_bytes(ODD_DIMS, FP16, **rows, length=5.5)
    work = {
        "compute": encoder_flops(ODD_DIMS, 13).times(3).total + steps,
        "memory": encoder_bytes(ODD_DIMS, FP16, **rows) + moved,
    }
    assert (bound.encoder.bound, bound.step.bound) == (limit, limit)
    assert bound.seconds == pytest.approx(work[limit] / slow)


def test_each_kind_of_product_runs_at_its_own_rate() -> None:
    device = Device("", 1e30, {"fp32": 1e30, "fp16": 1e6, "int8": 1e9}, memory=1)

    bound = floor(ODD_DIMS, device, PRECISIONS["int8"], batch=1, positions=13, tokens=1)

    flops = encoder_flops(ODD_DIMS, 13)
    assert bound.encoder.seconds == pytest.approx(flops.matrices / 1e9 + flops.others / 1e6)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", ["tiny", "large-v3", "turbo"])
def test_more_work_is_never_cheaper(gpu: str, model: str) -> None:
    def bound(*, precision: str = "fp16", batch: int = 8, positions: int = 750, tokens: int = 100) -> float:
        formats = PRECISIONS[precision]
        return floor(MODELS[model], GPUS[gpu], formats, batch=batch, positions=positions, tokens=tokens).seconds

    batches = [1, 2, 8, 32, 256]
    by_batch = [bound(batch=batch) for batch in batches]
    assert by_batch == sorted(by_batch)
    per_row = [seconds / batch for seconds, batch in zip(by_batch, batches, strict=True)]
    assert per_row == sorted(per_row, reverse=True), "a batch shares what its rows share"
    for costs in (
        [bound(positions=positions) for positions in (1, 100, 750, 1500)],
        [bound(tokens=tokens) for tokens in (1, 50, 444)],
        [bound(precision=precision) for precision in reversed(GPU_PRECISIONS)],  # wider and wider
    ):
        assert all(less < more for less, more in pairwise(costs)), costs


def test_stored_bytes_are_all_weights_and_the_longest_rows() -> None:
    bound = floor(ODD_DIMS, GPUS["t4"], PRECISIONS["int8-kv"], batch=3, positions=13, tokens=8)
    with torch.device("meta"):
        parameters = parameter_count(Encoder(ODD_DIMS)) + parameter_count(Decoder(ODD_DIMS))

    in_int8 = encoder_parameters(ODD_DIMS).matrices + decoder_parameters(ODD_DIMS).matrices
    assert bound.weight_bytes == 2 * parameters - in_int8
    assert bound.kv_bytes == 3 * 2 * 5 * 24 * (13 + 4 + 8)


@pytest.mark.parametrize("model", PUBLISHED)
def test_models_have_their_published_sizes(model: str) -> None:
    dims = MODELS[model]
    parts = (encoder_parameters(dims), decoder_parameters(dims))
    millions = sum(part.matrices + part.others + part.positions for part in parts) / 1e6

    published_millions, *published_sizes = PUBLISHED[model]
    assert millions == pytest.approx(published_millions, rel=0.04)
    assert [dims.n_mels, dims.n_vocab] == published_sizes


@pytest.mark.parametrize("model", ["base", "tiny.en"])
def test_models_are_those_of_the_checkpoints(model: str) -> None:
    assert MODELS[model] == load_checkpoint(model).dims


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "at least 1 row, not 0"),
        ({"positions": 0}, "1 to 20 positions, not 0"),
        ({"positions": 21}, "1 to 20 positions, not 21"),
        ({"tokens": 9}, "1 to 8 tokens, not 9"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floor(ODD_DIMS, GPUS["t4"], FP16, **{"batch": 1, "positions": 20, "tokens": 8, **change})
