"""Changes of a stream: found soon, not found where there are none, whatever pieces it comes in."""

import json
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.drift.change_detectors import Adwin, PageHinkley, SequentialEvidence
from falaj.drift.measures import Floats

QUIET, AFTER = 4_000, 6_000


def stream(rate: float, rows: int, seed: int) -> Floats:
    return (np.random.default_rng(seed).random(rows) < rate).astype(np.float64)


def delays(make: type[Adwin] | type[PageHinkley], rate: float, runs: int = 8) -> list[int]:
    found = []
    for seed in range(runs):
        detector = make()
        assert not detector.add(stream(0.1, QUIET, seed))
        found.append((detector.add(stream(rate, AFTER, 100 + seed)) or [AFTER])[0])
    return found


@pytest.mark.parametrize(("make", "small", "large"), [(Adwin, 1_500, 200), (PageHinkley, 1_500, 300)])
def test_a_stream_that_errs_more_is_noticed(make: type[Adwin], small: int, large: int) -> None:
    assert np.mean(delays(make, 0.15)) <= small
    assert np.mean(delays(make, 0.30)) <= large


def test_evidence_is_soon_enough_and_goes_on_where_it_was() -> None:
    waits = []
    for seed in range(8):
        whole, parts = SequentialEvidence(0.1), SequentialEvidence(0.1)
        assert whole.add(stream(0.1, QUIET, seed)) is None
        for part in np.split(stream(0.1, QUIET // 64 * 64, seed), 4_000 // 64):
            parts.add(part)
            parts = SequentialEvidence(0.1, state=tuple(json.loads(json.dumps(parts.state))))
        after = stream(0.3, AFTER, 100 + seed)
        waits.append(whole.add(after))
        assert parts.add(after) is not None
        assert whole.found
        assert whole.p <= 0.001
        assert whole.add(after) is None  # Said once.
    assert np.mean([wait for wait in waits if wait is not None]) <= 250
    assert None not in waits


def test_evidence_is_ever_wrong_no_more_often_than_alpha() -> None:
    wrong = sum(SequentialEvidence(0.1, alpha=0.05).add(stream(0.1, 3_000, seed)) is not None for seed in range(400))
    assert wrong <= 400 * 0.05 + 9


def test_no_detector_finds_anything_in_a_quiet_stream() -> None:
    quiet = stream(0.1, 60_000, 5)
    assert Adwin().add(quiet) == []
    assert SequentialEvidence(0.1).add(quiet) is None
    assert len(PageHinkley().add(quiet)) <= 3


def test_odd_values_and_constants() -> None:
    detector = Adwin()
    assert detector.add([np.nan, np.inf] * 100) == []
    assert detector.rows == 0
    assert detector.add(np.zeros(1_000)) == []
    assert detector.add(np.ones(64)) != []
    assert SequentialEvidence(0.2).add([]) is None
    assert PageHinkley().add([]) == []
    for bad in (0.0, 1.0, float("nan")):
        with pytest.raises(Invalid, match="most is"):
            SequentialEvidence(bad)
    with pytest.raises(Invalid, match="no state"):
        SequentialEvidence(0.1, state=(1.0, 2.0))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(0, 5))
def test_pieces_do_not_matter(pieces: list[int], seed: int) -> None:
    values = np.concatenate([stream(0.05, sum(pieces) // 2, seed), stream(0.9, sum(pieces) - sum(pieces) // 2, seed)])
    for make in (Adwin, PageHinkley):
        whole, parts, found, start = make(), make(), list[int](), 0
        for piece in pieces:
            found += [start + at for at in parts.add(values[start : start + piece])]
            start += piece
        assert found == whole.add(values)


@pytest.mark.slow
def test_windows_are_cut_as_rivers_are() -> None:
    from tests.servers.peers import peer

    program = """
import json, sys
from river.drift import ADWIN
found = []
for values in json.load(sys.stdin):
    detector, at = ADWIN(), None
    for place, value in enumerate(values):
        detector.update(value)
        if detector.drift_detected and place >= 4000 and at is None:
            at = place - 4000
    found.append(at)
print(json.dumps(found))
"""
    river = str(peer("river", "river==0.23.0", "typing_extensions") / "python")
    for rate in (0.15, 0.3):
        streams = [[*stream(0.1, QUIET, seed), *stream(rate, AFTER, 100 + seed)] for seed in range(12)]
        ran = subprocess.run(
            [river, "-c", program], input=json.dumps(streams), text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        theirs = [AFTER if at is None else at for at in json.loads(ran.stdout)]
        ours = delays(Adwin, rate, 12)
        print(rate, "river", np.mean(theirs), "ours", np.mean(ours))
        assert np.mean(ours) <= np.mean(theirs) * 1.25 + 32
