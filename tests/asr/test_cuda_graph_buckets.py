"""The bucket of CUDA graphs that is chosen for a decoder step."""

from __future__ import annotations

import pytest
import torch

from asr.kv_cache import KvCache
from asr.sessions.cuda_graphs import BATCHES, CAPACITIES, Bucket
from asr.sessions.pytorch import TorchSession
from tests.asr.graphed_steps import CPU, STEP_DIMS, Graphed, Inputs, assert_same_step, step_inputs


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 31, 32])
def test_the_batch_of_a_bucket(rows: int) -> None:
    assert Bucket.of(step_inputs(rows)) == Bucket(min(size for size in BATCHES if size >= rows), 64, 256)


@pytest.mark.parametrize(("capacity", "bucket"), [(64, 64), (128, 128), (192, 256), (256, 256), (320, 448), (448, 448)])
def test_the_capacity_of_a_bucket(capacity: int, bucket: int) -> None:
    assert Bucket.of(step_inputs(1, capacity)) == Bucket(1, bucket, 256)


@pytest.mark.parametrize(
    ("positions", "bucket"),
    [(1, 256), (256, 256), (257, 384), (384, 384), (385, 512), (513, 768), (769, 1024), (1025, 1500), (1500, 1500)],
)
def test_the_positions_of_a_bucket(positions: int, bucket: int) -> None:
    assert Bucket.of(step_inputs(1, positions=positions)) == Bucket(1, 64, bucket)


def test_the_cache_grows_through_the_buckets() -> None:
    """Every capacity that a cache can have is within a bucket: none is left to run eagerly unseen."""
    cache = KvCache(STEP_DIMS, 1, CPU)
    one = torch.zeros(STEP_DIMS.n_text_layer, 2, 1, STEP_DIMS.n_text_head, 1, STEP_DIMS.head_dim)
    seen = set()
    for _ in range(STEP_DIMS.n_text_ctx):
        cache.append(one, torch.ones(1, dtype=torch.int64))
        bucket = Bucket.of({**step_inputs(1), **cache.tensors()})
        assert bucket is not None
        seen.add(bucket.capacity)
    assert seen == set(CAPACITIES)


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(step_inputs(2, steps=3), id="a prefix"),
        pytest.param({**step_inputs(1), "logit_positions": torch.zeros(1, 2, dtype=torch.int64)}, id="two logits"),
        pytest.param(step_inputs(33), id="more rows"),
        pytest.param(step_inputs(1, 449), id="a longer cache"),
        pytest.param(step_inputs(1, positions=1501), id="more positions"),
    ],
)
def test_what_is_in_no_bucket_runs_as_it_is(eager: TorchSession, graphed: Graphed, inputs: Inputs) -> None:
    assert Bucket.of(inputs) is None
    assert_same_step(graphed.session.run(inputs), eager.run(inputs))
    assert graphed.recorder.captures == graphed.recorder.replays == 0
