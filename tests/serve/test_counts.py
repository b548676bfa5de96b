"""Counts: sums stay what they are when seconds become minutes, and the present is what gateways said last."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.serve.request_counts import (
    SERIES_PREFIX,
    ArmSum,
    CountRow,
    RequestCounts,
    bucket_start_us,
    latency_bucket,
    latency_quantile_us,
)
from falaj.serve.sealed_blocks import SealedBlocks
from tests.serve.ground import NOON, REF, WHOSE, counted
from tests.town import Town


@pytest.fixture
def counts(town: Town) -> Iterator[RequestCounts]:
    made = RequestCounts(town.house._open_series, town.house.ledger)
    yield made
    made.delete("bank", REF)


@given(st.integers(0, 1 << 40))
def test_a_latency_lies_in_its_bucket(us: int) -> None:
    name = latency_bucket(us)
    assert bucket_start_us(name) <= us < bucket_start_us(name + 1)
    assert us < 8 or bucket_start_us(name + 1) - bucket_start_us(name) <= us * 0.126


def test_quantiles_are_near_the_real_ones() -> None:
    values = np.random.default_rng(1).lognormal(8, 1, 20_000).astype(int)
    told: dict[int, int] = {}
    for value in values:
        told[latency_bucket(int(value))] = told.get(latency_bucket(int(value)), 0) + 1
    for share in (0.5, 0.95, 0.99):
        assert latency_quantile_us(told, share) == pytest.approx(np.quantile(values, share), rel=0.07)
    assert latency_quantile_us({}, 0.5) == 0


def test_sums_by_arm_from_a_moment_on(counts: RequestCounts) -> None:
    for second in range(10):
        counts.append([counted(NOON + second), counted(NOON + second, "canary", 2, 3, errors=1)])
    found = counts.since("bank", REF, NOON + 5)
    assert {arm: (one.revision, one.requests, one.errors) for arm, one in found.items()} == {
        "base": (1, 50, 0), "canary": (2, 15, 5),
    }  # fmt: skip
    assert found["base"].above(bucket_start_us(latency_bucket(100))) == 50
    assert counts.since("clinic", REF, 0) == {}


def test_an_arm_that_changed_its_revision_is_counted_anew(counts: RequestCounts) -> None:
    counts.append([counted(NOON), counted(NOON + 1, revision=2, requests=4), counted(NOON + 2, revision=1)])
    assert counts.since("bank", REF, NOON)["base"].requests == 4


def test_minutes_sum_to_the_same_and_are_cut_where_a_trial_began(counts: RequestCounts) -> None:
    began = NOON + 95
    for second in range(300):
        counts.append([counted(NOON + second, gateway=f"gateway-{second % 2}")])
    before = counts.since("bank", REF, NOON), counts.since("bank", REF, began)
    assert counts.tidy(WHOSE, NOON + 300, (began,)) > 100
    assert (counts.since("bank", REF, NOON), counts.since("bank", REF, began)) == before
    assert before[1]["base"].requests == 2050
    assert counts.tidy(WHOSE, NOON + 300, (began,)) == 0, "there is nothing left to do"
    assert counts.tidy(WHOSE, NOON + 91 * 86400) > 0
    assert counts.since("bank", REF, 0) == {}


def test_an_hour_becomes_one_block_however_often_one_tidies(counts: RequestCounts, town: Town) -> None:
    start = NOON // 3600 * 3600
    for second in range(0, 3600, 12):
        counts.append([counted(start + second)])
        if second % 1200 == 1188:
            counts.tidy(WHOSE, start + second)
    counts.append([counted(start + 3700 + second) for second in range(70)])
    counts.append([counted(start + 4000)])
    blocks: SealedBlocks[CountRow] = SealedBlocks(SERIES_PREFIX, CountRow, town.house._open_series, town.house.ledger)
    counts.tidy(WHOSE, start + 7000)
    before = len(blocks.blocks("bank", REF))
    assert counts.since("bank", REF, start)["base"].requests == 3710
    assert before < 100
    for second in range(70):
        counts.append([counted(start + 4001 + second)])
    counts.tidy(WHOSE, start + 7000)
    assert len(blocks.blocks("bank", REF)) == 2
    assert counts.since("bank", REF, start)["base"].requests == 4410


def test_the_present_is_what_each_gateway_said_last(counts: RequestCounts) -> None:
    for second in range(20):
        for gateway in ("a", "b"):
            counts.append([counted(NOON + second, inflight=second, held=1, gateway=gateway)])
    counts.append([counted(NOON + 1, inflight=99, gateway="gone")])
    load = counts.load("bank", REF, NOON + 20, 10)[1]
    assert (load.inflight, load.held, load.last_at) == (38, 2, NOON + 19)
    assert load.requests_s == pytest.approx(20)
    assert load.p95_us == pytest.approx(100, rel=0.13)


def test_what_lies_on_the_disk_is_sealed(counts: RequestCounts, town: Town) -> None:
    counts.append([counted(NOON, arm="canary")])
    home = Path(town.house.settings.home)
    assert not any(b"canary" in file.read_bytes() for file in home.rglob("series*"))


def test_a_sum_of_nothing() -> None:
    assert ArmSum("base", 1).quantile_us(0.95) == 0
