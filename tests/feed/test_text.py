"""Windows of tokens, and buckets of like length."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.feed.batch_loader import BatchLoader
from falaj.feed.buckets import Buckets
from falaj.feed.shards import write_shards
from falaj.feed.sources import open_source
from falaj.feed.text import Tokens


@pytest.mark.parametrize(("kind", "length"), [(np.uint16, 8), (np.uint32, 7), (np.uint16, 1)])
def test_windows_overlap_by_the_token_to_foretell(kind: type, length: int, tmp_path: Path) -> None:
    flat = np.arange(1000, dtype=kind)
    flat.tofile(tmp_path / "t.bin")
    np.save(tmp_path / "t.npy", flat)
    for tokens in (Tokens(tmp_path / "t.bin", length, kind), Tokens(tmp_path / "t.npy", length), Tokens(flat, length)):
        assert len(tokens) == 999 // length
        last = len(tokens) - 1
        found = tokens.take(np.array([0, last]))["tokens"]
        expected = [np.arange(n * length, n * length + length + 1).tolist() for n in (0, last)]
        assert found.dtype == np.int64
        assert found.tolist() == expected
    batch = next(BatchLoader(tokens, 4).stream(0, 1)).batch
    assert batch["tokens"].shape == (4, length + 1)
    assert batch["tokens"].dtype == torch.int64


def test_token_files_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(b"123")
    (tmp_path / "none.bin").touch()
    for name in ("odd.bin", "none.bin"):
        with pytest.raises(CorruptData, match=name):
            Tokens(tmp_path / name, 1)
    with pytest.raises(NotFound):
        Tokens(tmp_path / "nowhere.bin", 1)
    with pytest.raises(Invalid, match="no window"):
        Tokens(np.arange(8), 8)
    with pytest.raises(Invalid, match="flat"):
        Tokens(np.zeros((3, 3)), 2)


def ragged(folder: Path, lengths: list[int]) -> object:
    rows = ({"t": np.full(length, n, np.int32), "n": n} for n, length in enumerate(lengths))
    return open_source(write_shards(rows, folder, ragged=["t"]))


def test_buckets_pad_little_and_hold_every_sample_once_an_epoch(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).integers(1, 200, 400).tolist()
    source = Buckets(ragged(tmp_path / "s", lengths), lengths, tokens=1000, pad=-1)
    feed = BatchLoader(source, 6, micro=1, seed=4)
    epochs: list[list[int]] = [[], []]
    tokens = padding = 0
    for one in feed.stream(0, -(-2 * len(source) // 6)):
        batch = one.batch
        place = one.step * 6 + one.number
        if place >= 2 * len(source):
            continue
        epochs[place // len(source)] += batch["n"].tolist()
        assert batch["t"].numel() <= 1000
        assert batch["lengths"].tolist() == [lengths[n] for n in batch["n"].tolist()]
        assert (batch["t"] != -1).sum(1).tolist() == batch["lengths"].tolist()
        tokens += int(batch["lengths"].sum())
        padding += int((batch["t"] == -1).sum())
    assert [sorted(epoch) for epoch in epochs] == [list(range(400))] * 2
    assert epochs[0] != epochs[1]
    assert padding < tokens / 8


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=200),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_buckets_are_a_function_of_seed_and_epoch(lengths: list[int], seed: int, epoch: int) -> None:
    base = open_source({"n": np.arange(len(lengths))})
    one, other = (Buckets(base, lengths, tokens=128, round_to=8) for _ in range(2))
    for source in (one, other):
        source.order(seed, 0)
    other.members(0)
    buckets = range(epoch * len(one), (epoch + 1) * len(one))
    assert [one.members(b).tolist() for b in buckets] == [other.members(b).tolist() for b in reversed(buckets)][::-1]
    assert sorted(n for b in buckets for n in one.members(b).tolist()) == list(range(len(lengths)))
    rounded = -(-np.array(lengths) // 8) * 8
    assert all(len(one.members(b)) * rounded[one.members(b)].max() <= 128 for b in buckets)


def test_sums_over_buckets_are_sums_over_samples(tmp_path: Path) -> None:
    lengths = [3, 90, 17, 40, 41, 5, 77]
    source = Buckets(ragged(tmp_path / "s", lengths), lengths, tokens=200)
    feed = BatchLoader(source, len(source), micro=1)
    total = sum(float(one.batch["t"].sum()) for one in feed.stream(0, 1))
    count = sum(int(one.batch["lengths"].sum()) for one in feed.stream(0, 1))
    assert total == sum(n * length for n, length in enumerate(lengths))
    assert count == sum(lengths)


def test_what_fits_no_bucket_is_refused() -> None:
    base = open_source({"n": np.arange(2)})
    with pytest.raises(Invalid, match="longest sample takes 64"):
        Buckets(base, [1, 50], tokens=63)
    with pytest.raises(Invalid, match="1 lengths for 2"):
        Buckets(base, [1], tokens=63)
