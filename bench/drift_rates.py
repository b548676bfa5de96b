"""How often nothing is called drift, and how soon each kind of drift is found.

    python bench/drift_rates.py            everything; some minutes on a core
    python bench/drift_rates.py kinds      one part: noise, power, kinds, streams
    --small                                a quick look; its figures mean little

Beside ours: a test of each column at 5 % (any KS), an index above 0.2 (any PSI), and an alarm every seventh window
whatever comes, which every detector must beat. All look at the same counts. A table for people, then one line of JSON.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bars import bar, told

from falaj.drift import synthetic_drift
from falaj.drift.change_detectors import Adwin, PageHinkley, SequentialEvidence
from falaj.drift.concept_drift import detect_calibration_drift, detect_error_drift
from falaj.drift.drift_tests import compare_tally, filter_persistent
from falaj.drift.profiles import build_profile
from falaj.drift.records import TASK_BINARY, DataProfile, DriftFinding, DriftRules, ModelQuality
from falaj.drift.seasonality import compare_seasonal, merge_tallies
from falaj.drift.tally import DataTally
from tests.drift.worlds import WORLDS, any_ks, any_psi, ours, windows

SMALL = "--small" in sys.argv
REFERENCES, EACH = (3, 4) if SMALL else (30, 8)
STREAMS = 3 if SMALL else 24
QUIET, DRIFTING, ROWS, EVERY = 8, 16, 2_000, 7
"""Windows before and after a drift begins, their rows; and the dummy's rhythm."""
SIZES = {synthetic_drift.KIND_PRIOR: 0.5, synthetic_drift.KIND_CONCEPT: 0.3, synthetic_drift.KIND_COVARIATE: 1.0}
Findings = tuple[DriftFinding, ...]


def noise() -> None:
    """Windows without drift that alarm, per 100: 50 columns."""
    print(f"  {'':28}{'ours':>8}{'any KS':>8}{'PSI .1':>8}{'PSI .2':>8}")
    for world in WORLDS:
        for then, rows in ((10_000, 200), (2_000, 1_000), (10_000, 10_000), (20_000, 100_000)):
            references = max(2, REFERENCES // 10) if rows == 100_000 else REFERENCES
            found = list(windows(WORLDS[world], references, EACH, then=then, rows=rows, seed=rows))
            shares = [_share(one, found) for one in (ours, any_ks, lambda each: any_psi(each, 0.1), any_psi)]
            print(f"  {world:<10}{then:>8}{rows:>9} " + "".join(f"{share:8.1f}" for share in shares), flush=True)
            note = f"per 100; 5 and what {len(found)} windows leave open"
            bar(f"false_{world}_{rows}", shares[0], "<=", _allowed(found), note)


def power() -> None:
    """Windows that alarm, per 100: 3 of 50 columns shifted."""
    print(f"  {'':28}{'ours':>8}{'any KS':>8}{'PSI .2':>8}")
    for rows, shift in ((1_000, 0.1), (10_000, 0.1), (10_000, 0.3), (100_000, 0.02)):
        references = 2 if rows == 100_000 else max(3, REFERENCES // 3)
        found = list(windows(WORLDS["plain"], references, EACH, then=10_000, rows=rows, shift=shift, seed=rows))
        shares = [_share(one, found) for one in (ours, any_ks, any_psi)]
        print(f"  {rows:>18} {shift:7.2f} " + "".join(f"{share:8.1f}" for share in shares), flush=True)
        if (rows, shift) == (10_000, 0.1):
            bar("power_10k_tenth_sd", shares[0], ">=", 99.0, "per 100")
        if shift == 0.02:
            bar("harmless_100k", shares[0], "<=", _allowed(found), "per 100, as without drift: 0.02 sd changes nothing")


def _allowed(found: Sequence[Findings]) -> float:
    return float(5 + 2 * (5 * 95 / len(found)) ** 0.5)


def _share(rule: Callable[[Findings], bool], found: Sequence[Findings]) -> float:
    return 100 * sum(map(rule, found)) / len(found)


def kinds() -> None:
    """Every kind of drift: false alarms per 100 quiet windows, and how many windows it takes; 2,000 rows each."""
    print(f"  {'':11}" + "".join(f"{name:>18}" for name in ("ours, lasting", "ours", "any KS", "any PSI", "every 7th")))
    missed, false, quiet = [], 0, 0
    for kind in synthetic_drift.DRIFT_KINDS:
        runs = [_run(kind, seed) for seed in range(STREAMS)]
        cells = []
        for rule in ("lasting", "ours", "any_ks", "any_psi", "dummy"):
            early = sum(sum(run[rule][:QUIET]) for run in runs)
            delays = [_delay(run[rule][QUIET:]) for run in runs]
            found = [one for one in delays if one is not None]
            late = f"{np.mean(found):5.1f} ({len(found)}/{len(delays)})" if found else f"  -   (0/{len(delays)})"
            cells.append(f"{100 * early / (QUIET * len(runs)):5.1f} {late:>12}")
            if rule == "lasting":
                false, quiet = false + early, quiet + QUIET * len(runs)
                if kind != synthetic_drift.KIND_NONE and len(found) < len(delays):
                    missed.append(kind)
                if kind == synthetic_drift.KIND_NONE:
                    false, quiet = false + sum(sum(run[rule][QUIET:]) for run in runs), quiet + DRIFTING * len(runs)
        print(f"  {kind:<11}" + "".join(f"{cell:>18}" for cell in cells), flush=True)
    bar("kinds_missed", float(len(missed)), "<=", 0.0, ", ".join(missed))
    bar("kinds_false_lasting", 100 * false / quiet, "<=", 1.0, "per 100 quiet windows, found in 2 of 3")
    _recurring()


def _recurring() -> None:
    """What returns with a season is no drift."""
    alarms = count = 0
    for seed in range(STREAMS):
        profile, _ = _model(seed)
        tallies = [_tally(profile, one) for one in _stream(synthetic_drift.KIND_RECURRING, seed, 0, 24)]
        for at in range(8, 24):
            season = merge_tallies(tallies[at % 8 : at : 8])
            alarms += ours(compare_seasonal(profile, tallies[at], DriftRules(), season))
            count += 1
    bar("recurring_with_season", 100 * alarms / count, "<=", 5.0, "alarms per 100 windows from the second season on")


def _run(kind: str, seed: int) -> dict[str, list[bool]]:
    """What each rule says of every window."""
    profile, quality = _model(seed)
    said: dict[str, list[bool]] = {name: [] for name in ("lasting", "ours", "any_ks", "any_psi", "dummy")}
    history: list[Findings] = []
    state: tuple[float, ...] = ()
    for at, one in enumerate(_stream(kind, seed, QUIET, QUIET + DRIFTING)):
        found = compare_tally(profile, _tally(profile, one), DriftRules())
        said["any_ks"].append(any_ks(found))
        said["any_psi"].append(any_psi(found))
        wrong, state = detect_error_drift(quality, (one.scores > 0.5) != one.labels, DriftRules(), state)
        meant = detect_calibration_drift(quality, one.scores, one.labels, DriftRules())
        history.append((*found, *(extra for extra in (wrong, meant) if extra is not None)))
        said["ours"].append(ours(history[-1]))
        said["lasting"].append(bool(filter_persistent(history, DriftRules())))
        said["dummy"].append(at % EVERY == EVERY - 1)
    return said


def _delay(said: list[bool]) -> int | None:
    return next((at + 1 for at, one in enumerate(said) if one), None)


def _stream(kind: str, seed: int, begins: int, many: int) -> Any:
    return synthetic_drift.iterate_windows(
        kind,
        many,
        ROWS,
        seed=1_000 * (seed + 1),
        first_drifted=begins,
        drift_size=SIZES.get(kind, 0.3),
        noise_columns=14,
    )


def _model(seed: int) -> tuple[DataProfile, ModelQuality]:
    """A reference of 10,000 rows, and what the model was worth on others."""
    then = synthetic_drift.make_reference(10_000, seed=500_000 + seed, noise_columns=14)
    held = synthetic_drift.make_reference(10_000, seed=600_000 + seed, noise_columns=14)
    parts = np.array_split(np.argsort(held.scores), 20)
    right = float(np.mean((held.scores > 0.5) == held.labels))
    scores, chances = ([float(one[part].mean()) for part in parts] for one in (held.scores, held.labels))
    quality = ModelQuality(TASK_BINARY, {"accuracy": right}, tuple(scores), tuple(chances), rows=10_000)
    profile = build_profile(
        then.columns, predictions={"score": then.scores}, label=then.labels, label_name="truth", segment="city"
    )
    return profile, quality


def _tally(profile: DataProfile, one: synthetic_drift.SyntheticBatch) -> DataTally:
    tally, columns = DataTally(profile, seed=0), {**one.columns, "score": one.scores, "truth": one.labels}
    for first in range(0, ROWS, 250):  # As it comes: in batches.
        tally.add({name: column[first : first + 250] for name, column in columns.items()})
    return tally


def streams() -> None:
    """An error rate of 10 % that rises: false alarms in 100,000 values, values until it is found, cost of a value."""
    makers: dict[str, Callable[[], Any]] = {
        "ADWIN": Adwin,
        "Page-Hinkley": PageHinkley,
        "evidence": lambda: SequentialEvidence(0.1),
    }
    print(f"  {'':14}{'us/value':>10}{'false/100k':>12}{'10 -> 15 %':>12}{'10 -> 30 %':>12}")
    for name, make in makers.items():
        draw = np.random.default_rng(5)
        false, begun = 0, time.process_time()
        for _ in range(STREAMS):
            false += _many(make().add((draw.random(100_000) < 0.1).astype(float)))
        cost_us = (time.process_time() - begun) / STREAMS / 0.1
        late = [_late(make, rate) for rate in (0.15, 0.3)]
        print(f"  {name:<14}{cost_us:10.2f}{false / STREAMS:12.2f}{late[0]:12.0f}{late[1]:12.0f}", flush=True)
        key = name.lower().replace("-", "_")
        bar(f"stream_{key}_false", false / STREAMS, "<=", 0.0 if name == "evidence" else 2.5, "in 100,000 values")
        bar(f"stream_{key}_delay_30", late[1], "<=", {"ADWIN": 150, "Page-Hinkley": 260, "evidence": 160}[name])


def _late(make: Callable[[], Any], rate: float) -> float:
    found = []
    for seed in range(max(8, STREAMS)):
        draw, detector = np.random.default_rng(seed), make()
        detector.add((draw.random(5_000) < 0.1).astype(float))
        said = detector.add((draw.random(20_000) < rate).astype(float))
        found.append((said[0] if said else 20_000) if isinstance(said, list) else 20_000 if said is None else said)
    return float(np.mean(found))


def _many(said: list[int] | int | None) -> int:
    return len(said) if isinstance(said, list) else int(said is not None)


if __name__ == "__main__":
    told("drift_rates", [noise, power, kinds, streams], small=SMALL)
