"""Keys and values of rows of different lengths, which come and go."""

from __future__ import annotations

import torch
from torch import Tensor

from asr.kv_cache import BLOCK, KvCache
from tests.asr.odd_dims import ODD_DIMS

CPU = torch.device("cpu")


def steps(count: int, *, rows: int = 1, seed: int = 0) -> Tensor:
    """New keys and values: (layers, 2, rows, heads, steps, head_dim)."""
    dims = ODD_DIMS
    shape = (dims.n_text_layer, 2, rows, dims.n_text_head, count, dims.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def batch(*counts: int) -> tuple[KvCache, list[Tensor]]:
    """A cache whose rows have read so many tokens, and each row's keys and values."""
    cache = KvCache(ODD_DIMS, len(counts), CPU)
    new_kv = steps(max(counts), rows=len(counts))
    cache.append(new_kv, torch.tensor(counts))
    return cache, [new_kv[:, :, [row], :, :count] for row, count in enumerate(counts)]


def assert_holds(cache: KvCache, *rows: Tensor) -> None:
    """These keys and values, each in every input of its layer."""
    assert cache.lengths.tolist() == [row.shape[4] for row in rows]
    for name, value in cache.tensors().items():
        _, part, layer = name.split("_")
        assert value.is_contiguous()
        assert value.shape == (len(rows), ODD_DIMS.n_text_head, cache.capacity, ODD_DIMS.head_dim)
        for index, row in enumerate(rows):
            expected = row[int(layer), ("key", "value").index(part), 0]
            assert torch.equal(value[index, :, : row.shape[4]], expected), name
        assert value.isfinite().all()


def test_rows_grow_by_what_counts() -> None:
    """Steps beyond a row's count are covered by the next ones."""
    cache, (first, second) = batch(5, 2)
    more = steps(1, rows=2, seed=1)
    cache.append(more, torch.ones(2, dtype=torch.int64))

    assert_holds(cache, torch.cat((first, more[:, :, [0]]), dim=4), torch.cat((second, more[:, :, [1]]), dim=4))
    assert len(cache.tensors()) == 2 * ODD_DIMS.n_text_layer


def test_rows_of_another_cache() -> None:
    cache, (first, second) = batch(5, 2)
    other, others = batch(BLOCK + 1, 3, 7)
    cache.extend(other)

    assert cache.capacity == 2 * BLOCK
    assert_holds(cache, first, second, *others)


def test_an_empty_cache_takes_rows() -> None:
    cache = KvCache(ODD_DIMS, 0, CPU)
    other, rows = batch(4, 6)
    cache.extend(other)

    assert_holds(cache, *rows)


def test_the_last_row_takes_the_place_of_one_that_leaves() -> None:
    cache, (_, second, third) = batch(5, 2, 4)
    cache.remove(0)
    assert_holds(cache, third, second)

    cache.remove(1)
    assert_holds(cache, third)


def test_the_first_rows_stay() -> None:
    cache, (first, *_) = batch(5, 2, 4)
    cache.cut(1)

    assert_holds(cache, first)


def test_capacity_follows_the_longest_row() -> None:
    """Room for one token more than it has, in whole blocks; less of it only once half suffices."""
    cache, (long, _, short) = batch(2 * BLOCK, 4 * BLOCK - 2, 3)
    assert cache.capacity == 4 * BLOCK

    cache.append(steps(1, rows=3), torch.zeros(3, dtype=torch.int64))
    cache.remove(1)
    assert cache.capacity == 4 * BLOCK  # of which 2 * BLOCK + 1 tokens need three blocks
    assert_holds(cache, long, short)

    cache.remove(0)
    assert cache.capacity == BLOCK
    assert_holds(cache, short)

    cache.remove(0)
    assert cache.capacity == BLOCK


def test_a_cache_grows_when_its_longest_row_does() -> None:
    cache, rows = batch(BLOCK, 1)
    assert cache.capacity == BLOCK
    more = steps(1, rows=2, seed=1)
    cache.append(more, torch.ones(2, dtype=torch.int64))

    assert cache.capacity == 2 * BLOCK
    assert_holds(cache, *(torch.cat((row, more[:, :, [index]]), dim=4) for index, row in enumerate(rows)))


def test_part_of_the_rows_by_reference() -> None:
    cache, (_, second, _) = batch(5, 2, 4)
    for name, value in cache.tensors(slice(1, 2)).items():
        _, part, layer = name.split("_")
        assert torch.equal(value[0, :, :2], second[int(layer), ("key", "value").index(part), 0])
        assert value.is_contiguous()
        assert value.untyped_storage().data_ptr() == cache.tensors()[name].untyped_storage().data_ptr()


def test_memory_is_reserved_once() -> None:
    cache = KvCache(ODD_DIMS, 0, CPU)
    cache.reserve(3, 2 * BLOCK)
    reserved = cache.tensors()["self_key_0"].untyped_storage()
    other, rows = batch(BLOCK + 1, 3, 7)
    cache.extend(other)

    assert cache.tensors()["self_key_0"].untyped_storage().data_ptr() == reserved.data_ptr()
    assert_holds(cache, *rows)
