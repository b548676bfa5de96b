"""The ground of bench/features.py: data as anchored, measured processes, and the sum that says two answers are one.

Imported by the programs of every side, in Feast's own environment too: only numpy and pyarrow beside the library.
"""

import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
SMALL = "--small" in sys.argv or os.environ.get("SMALL") == "1"
ROUNDS = int(os.environ.get("ROUNDS", "1" if SMALL else "3"))
SCALE = 20 if SMALL else 1
USERS = 100_000 // SCALE
LABELS = 1_000_000 // SCALE
VIEWS = {"v0": (2_000_000 // SCALE, 7), "v1": (5_000_000 // SCALE, 7), "v2": (3_000_000 // SCALE, 6)}
"""Rows and float features of each view."""
DAY_US = 86_400_000_000
BEGIN_US = 1_760_000_000_000_000
TTL_DAYS, SPAN_DAYS, BUSY = 7, int(os.environ.get("DAYS", "30")), float(os.environ.get("BUSY", "1.5"))
"""Days and skew are such that the SQL range join costs here what it cost in the published measurement of this set; with
DAYS=60 BUSY=1 a label has a third as many rows within its TTL, and everything built on range joins gets cheaper."""
BATCH = 500_000
RESTATED = 50
"""One row in so many is a later word on an earlier one."""
TURN_S = 0.3
KEYS = {"user_id": [n * 37 for n in range(10)]}
CASES = [
    (0, 1, 0.9, 10.0), (0, 5, 0.5, 5.0),  # an older event that comes later
    (1, 1, 0.9, 1.0), (1, 1, 0.5, 2.0),  # the same event, corrected
    (2, 24 * 30, 1, 7.0),  # past its TTL
    (3, -24, 1, 9.0),  # of tomorrow
]  # fmt: skip
"""User, hours since the event, hours since it was known, value; in the order of their arrival."""
RIGHT = [10.0, 2.0, None, None]
TIME = pa.timestamp("us", tz="UTC")


class Cost(NamedTuple):
    """What a program measured of itself, and its peak memory, which only the kernel knows."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    said: dict[str, Any]


def measured(python: str | Path, script: str, *arguments: str) -> Cost:
    """Run a program of a side to its end; its last line is the JSON of `report`."""
    child = Program(python, script, arguments)
    out, _ = child.communicate()
    if child.returncode:
        raise child.failure()
    said = json.loads(out.strip().splitlines()[-1])
    return Cost(said.pop("cpu_s"), said.pop("wall_s"), said.pop("peak_mib"), said)


class Program(subprocess.Popen[str]):
    """A program of a side; what it says beside its figures is shown when it fails."""

    def __init__(self, python: str | Path, script: str, arguments: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the program
        env = os.environ | {"FEAST_USAGE": "False", "SMALL": str(int(SMALL))}
        command = [str(python), str(HERE / script), *arguments]
        pipe = subprocess.PIPE
        super().__init__(command, env=env, stdin=pipe, stdout=pipe, stderr=self._said, text=True)

    def failure(self) -> SystemExit:
        """What to raise when it did not work."""
        self._said.seek(0)
        return SystemExit(f"{' '.join(map(str, self.args))[:300]} failed:\n{self._said.read()[-2000:]}")  # type: ignore[arg-type]


def report(work: Callable[[], Any], then: Callable[[Any], dict[str, Any]] = lambda _: {}) -> None:
    """In a program: do the work, say what it cost with its children, then what `then` finds in the result."""
    cpu, wall = used_s(), time.perf_counter()
    result = work()
    cpu, wall = used_s() - cpu, time.perf_counter() - wall
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "peak_mib": peak, **then(result)}))


def used_s() -> float:
    """User and system seconds of this process and of the children it has waited for."""
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in found)


def median(costs: Sequence[Cost]) -> Cost:
    """The figures in the middle, each for itself; what was said by the last."""
    middle = [statistics.median(cost[n] for cost in costs) for n in range(3)]
    return Cost(middle[0], middle[1], max(cost.peak_mib for cost in costs), costs[-1].said)


def names(view: str) -> list[str]:
    """The features of a view."""
    return [f"{view}_f{n}" for n in range(VIEWS[view][1])]


def every_name() -> list[str]:
    """The features of all views, in order."""
    return [name for view in VIEWS for name in names(view)]


def make(folder: Path) -> None:
    """Labels and the rows of three views, as Parquet, in no order that helps anybody."""
    for number, (view, (count, _)) in enumerate(VIEWS.items()):
        write(folder / f"{view}.parquet", batches(count, names(view), number))
    chance = np.random.default_rng(99)
    users = drawn(chance, LABELS, USERS)
    users[chance.choice(LABELS, LABELS // 50, replace=False)] += USERS  # a few that no view knows
    at = BEGIN_US + chance.integers(TTL_DAYS * 86_400, SPAN_DAYS * 86_400, LABELS) * 1_000_000
    known = pq.read_table(folder / "v0.parquet", columns=["user_id", "event"]).slice(0, LABELS // 100)
    edge = chance.choice(LABELS, known.num_rows, replace=False)  # at the very moment of a row
    users[edge] = known["user_id"].to_numpy()
    at[edge] = known["event"].cast(pa.int64()).to_numpy()
    columns = {"row": np.arange(LABELS), "user_id": users, "event_timestamp": pa.array(at, TIME)}
    pq.write_table(pa.table(columns), folder / "labels.parquet")


def write(path: Path, found: Iterator[pa.RecordBatch]) -> None:
    """Batches into one file, never all in memory."""
    first = next(found)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_batch(first)
        for batch in found:
            writer.write_batch(batch)


def batches(count: int, features: Sequence[str], seed: int, users: int = USERS) -> Iterator[pa.RecordBatch]:
    """Rows of users at moments; no two share user, event and created, so that there is one right answer."""
    chance = np.random.default_rng(seed)
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        user = drawn(chance, size, users)
        event = (
            BEGIN_US
            + chance.integers(0, SPAN_DAYS * 86_400, size) * 1_000_000
            + np.arange(start, start + size) % 1_000_000
        )
        created = event + chance.integers(0, 3_600, size) * 1_000_000
        late = size // RESTATED
        user[:late], event[:late] = user[late : 2 * late], event[late : 2 * late]
        created[:late] = created[late : 2 * late] + 1 + chance.integers(0, DAY_US, late)
        order = chance.permutation(size)
        columns = {
            "user_id": user[order],
            "event": pa.array(event[order], TIME),
            "created": pa.array(created[order], TIME),
        }
        yield pa.RecordBatch.from_pydict(columns | {name: chance.normal(size=size) for name in features})


def drawn(chance: np.random.Generator, size: int, users: int) -> Any:
    """Users, some of them busier than others as people are; their numbers say nothing of it."""
    return (users * chance.random(size) ** BUSY).astype(np.int64) * 7_919 % users


def checksum(table: pa.Table) -> dict[str, Any]:
    """The bits of every feature in the order of `row`, nulls included; equal sums mean equal answers."""
    order = np.argsort(table["row"].to_numpy(), kind="stable")
    digest = hashlib.blake2b(np.ascontiguousarray(table["row"].to_numpy()[order]).tobytes(), digest_size=16)
    for name in every_name():
        column = table[name].combine_chunks()
        valid = column.is_valid().to_numpy(zero_copy_only=False)[order]
        values = column.fill_null(0.0).to_numpy(zero_copy_only=False)[order]
        digest.update(np.packbits(valid).tobytes() + values.tobytes())
    nulls = sum(table[name].null_count for name in every_name())
    return {"sum": digest.hexdigest(), "num_rows": table.num_rows, "nulls": nulls}


class Turns:
    """A program that reads, held open; each turn is a while of its calls."""

    def __init__(self, python: str | Path, script: str, *arguments: str) -> None:
        self._child = Program(python, script, arguments)
        self.took: list[float] = []
        if not self._line().startswith("ready"):
            raise self._child.failure()

    def go(self) -> None:
        """One turn."""
        print("go", file=self._child.stdin, flush=True)
        line = self._line()
        if not line:
            raise self._child.failure()
        self.took += json.loads(line)

    def close(self) -> "Turns":
        """End it."""
        self._child.communicate()
        return self

    @property
    def median_us(self) -> float:
        """What half of the calls take; bars are held to it, and the fastest tenth is shown beside."""
        return float(np.median(self.took) * 1e6)

    def __str__(self) -> str:
        p10, p50 = np.percentile(self.took, (10, 50)) * 1e6
        return f"{p10:8,.0f} µs (p10), p50 {p50:,.0f}"

    def _line(self) -> str:
        return self._child.stdout.readline() if self._child.stdout else ""


def turns(call: Callable[[], object]) -> None:
    """In a program: warm up, then measure calls for a while whenever a line comes in."""
    for _ in range(50):
        call()
    print("ready", flush=True)
    for _ in sys.stdin:
        took, end = [], time.perf_counter() + TURN_S
        while (began := time.perf_counter()) < end:
            call()
            took.append(time.perf_counter() - began)
        print(json.dumps(took), flush=True)


def together(sides: Sequence[Turns]) -> None:
    """Everybody has a turn in every round, so that what else the machine does falls on all alike."""
    for _ in range(2 if SMALL else 10):
        for side in sides:
            side.go()
    for side in sides:
        side.close()


if __name__ == "__main__":
    # In a process of its own: what a parent holds counts as its children's memory.
    report(lambda: make(Path(sys.argv[1])))
