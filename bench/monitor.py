"""Watching: reports, estimates without labels, KS, the serving path, false alarms, flows; beside libraries for each.

    make bench NAME=monitor              everything; about half an hour on two cores, most of it Evidently's
    python bench/monitor.py report       one part: report, estimate, ks, rows, path, rates, flow
    --small                              reports over 100k rows only

Evidently, NannyML and alibi-detect live in environments of their own; none of them may send anything. Each side is a
program of its own: CPU seconds of all its threads after its imports, memory beyond what they took; medians of rounds,
sides taking turns. Verdicts are compared, too: a quick answer must be the same answer. A table for people, then one
last line of JSON with every bar.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from bars import BARS, bar, told  # noqa: E402
from scratch import folder  # noqa: E402

from tests.servers.peers import peer  # noqa: E402

EVIDENTLY = ("evidently==0.7.23", "pandas<3")
NANNYML = ("nannyml==0.13.1", "statsmodels")
ALIBI = ("alibi-detect==0.13.0", "numpy<2")
US = sys.executable
SMALL = "--small" in sys.argv
ROUNDS = int(os.environ.get("ROUNDS", "3"))
QUIET = {"NML_DISABLE_USAGE_LOGGING": "1", "DO_NOT_TRACK": "1", "EVIDENTLY_DISABLE_TELEMETRY": "1"}
MOVED = {"c0", "f00", "f05", "f10"}


class Cost(NamedTuple):
    """What a side took, and what it said."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    said: dict[str, Any]


def report() -> None:
    """Which of 50 columns have moved."""
    evidently = peer("evidently", *EVIDENTLY) / "python"
    for label, rows in {"100k": 100_000, **({} if SMALL else {"1m": 1_000_000})}.items():
        print(f"  {rows:,} rows of 50 columns, against as many")
        with folder() as at:
            run(US, "make", at, rows)
            stored = run(US, "ours_profile", at)
            ours = [run(US, "ours_report", at) for _ in range(ROUNDS)]
            whole, limit = run(US, "ours_report", at, "whole"), run(US, "numpy_pass", at)
            theirs = [run(evidently, "evidently_report", at) for _ in range(1 if rows > 100_000 else min(2, ROUNDS))]
        us, them = middle(ours), middle(theirs)
        line("ours, from the stored profile", us)
        line("ours, the profile, once a model", stored, f"{stored.said['bytes'] / 2**20:.2f} MiB stored")
        line("ours, from both tables", whole)
        line("numpy, reads and sums the rows", limit)
        line("Evidently", them)
        bar(f"report_{label}_cpu_vs_evidently", us.cpu_s / them.cpu_s, "<=", 1 / 80)
        bar(f"report_{label}_memory_vs_evidently", us.peak_mib / them.peak_mib, "<=", 1 / 5)
        same = set(us.said["drifted"]) == set(whole.said["drifted"]) == set(them.said["drifted"]) == MOVED
        bar(f"report_{label}_same_columns", float(same), "==", 1, f"{len(MOVED)} have moved")


def estimate() -> None:
    """NannyML's car loans: ten chunks of 5,000 without labels; accuracy falls from 0.944 to 0.915 in the middle."""
    nannyml = peer("nannyml", *NANNYML) / "python"
    with folder() as at:
        run(nannyml, "car_loan", at)
        pairs = [(run(US, "ours_estimate", at), run(nannyml, "nannyml_estimate", at)) for _ in range(ROUNDS)]
    us, them = middle([one for one, _ in pairs]), middle([one for _, one in pairs])
    line("ours", us, f"{us.said['inside']:.0%} of what came true lies in its interval of 95 %")
    line("NannyML", them)
    bar("estimate_cpu_vs_nannyml", us.cpu_s / them.cpu_s, "<=", 1 / 40)
    for name, real in us.said["real"].items():
        errors = [
            statistics.mean(abs(a - b) for a, b in zip(side.said["estimates"][name], real, strict=True))
            for side in (us, them)
        ]
        bar(f"estimate_error_{name}_vs_nannyml", errors[0] / errors[1], "<=", 1.1, f"{errors[0]:.5f}, {errors[1]:.5f}")
    fell = [False] * 5 + [True] * 5
    bar("estimate_finds_the_drop", float(us.said["alarms"] == fell), "==", 1)


def ks() -> None:
    """Kolmogorov-Smirnov of 45 columns, 100,000 rows against as many."""
    alibi = peer("alibi", *ALIBI) / "python"
    with folder() as at:
        run(US, "make", at, 100_000)
        pairs = [(run(US, "ours_ks", at), run(alibi, "alibi_ks", at)) for _ in range(ROUNDS)]
        whole = run(US, "ours_ks", at, "whole")
    us, them = middle([one for one, _ in pairs]), middle([one for _, one in pairs])
    line("ours, with all the measures", us)
    line("ours, the reference cut as well", whole)
    line("alibi-detect", them)
    bar("ks_cpu_vs_alibi", us.cpu_s / them.cpu_s, "<=", 1.0)
    bar("ks_same_columns", float(set(us.said["drifted"]) == set(them.said["drifted"]) == MOVED - {"c0"}), "==", 1)


def rows() -> None:
    """From stored counts, a comparison costs the same however many rows were counted."""
    found = run(US, "ours_independent", ".").said
    print(f"  {found['few_s'] * 1e3:.2f} ms for 10,000 rows of 50 columns, {found['many_s'] * 1e3:.2f} for 1,000,000")
    bar("compare_1m_vs_10k_rows", found["many_s"] / found["few_s"], "<=", 1.1)


def path() -> None:
    """In the serving path."""
    other("watch_cost.py")


def rates() -> None:
    """False alarms and delays, for every kind of drift."""
    other("drift_rates.py")


def flow() -> None:
    """A step of a flow beside the same job by hand."""
    other("flow_cost.py")


def other(script: str) -> None:
    """A bench of its own: its lines as they are, its bars among ours."""
    command = [US, str(HERE / script), *(["--small"] if SMALL else [])]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=HERE.parent)
    lines = done.stdout.rstrip().splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{script} failed: {done.stderr.strip()[-500:]}")
    print("\n".join(lines[:-1]), flush=True)
    BARS.update(json.loads(lines[-1])["bars"])


def run(python: str | Path, act: str, *arguments: Any) -> Cost:
    """A program of a side to its end."""
    command = [str(python), str(HERE / "monitor_sides.py"), act, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **QUIET})
    if done.returncode:
        raise SystemExit(f"{act} failed:\n{done.stderr[-2000:]}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return Cost(said.pop("cpu_s"), said.pop("wall_s"), said.pop("peak_mib"), said)


def middle(costs: list[Cost]) -> Cost:
    """The figures in the middle, each for itself."""
    figures = [statistics.median(one[at] for one in costs) for at in range(3)]
    return Cost(figures[0], figures[1], figures[2], costs[-1].said)


def line(name: str, cost: Cost, note: str = "") -> None:
    """One side, for people."""
    print(f"    {name:<34} {cost.cpu_s:9.3f} CPU s {cost.wall_s:9.3f} s {cost.peak_mib:8.0f} MiB  {note}", flush=True)


if __name__ == "__main__":
    told("monitor", [report, estimate, ks, rows, path, rates, flow], small=SMALL)
