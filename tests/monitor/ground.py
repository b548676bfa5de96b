"""What tests of watches stand on: a real house with a deployed model and no replica. What replicas would have counted
is appended as gateways append it, and the loop is turned by hand, at the moment that the test says."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import falaj
from falaj.core.ref import Ref
from falaj.drift.profiles import build_profile, encode_profile, read_profile
from falaj.drift.records import PROFILE_FILE, DataProfile, ModelQuality
from falaj.drift.tally import DataTally
from falaj.drift.tally_encoding import encode_tally
from falaj.monitor.monitor_loop import MonitorLoop
from falaj.monitor.plans import read_plan
from falaj.monitor.records import ReportFigures
from falaj.monitor.windows import find_slot_start
from falaj.serve.drift_counts import DriftCountRow
from falaj.serve.request_counts import CountRow, latency_bucket
from falaj.serve.request_journal import JournalRow
from falaj.serve.sealed_blocks import RowOwner
from falaj.store.reconcile_loop import LoopIteration, system_context
from tests.infer import models

MINUTE = 60.0
NAMES = tuple(f"x[{at}]" for at in range(4))
FEW = {"every_s": "60", "least_rows": "200"}


def columns(rows: int, seed: int = 0, shift: float = 0.0) -> dict[str, Any]:
    """Rows as they come; the first column may lie elsewhere."""
    rng = np.random.default_rng(seed)
    made = {name: rng.normal(shift if name == NAMES[0] else 0.0, 1, rows) for name in NAMES}
    return {**made, "score": 1 / (1 + np.exp(-made[NAMES[1]]))}


def profile(rows: int = 20_000, **more: Any) -> DataProfile:
    """What the model was made on."""
    known = columns(rows, seed=99)
    score = {"score": known.pop("score")}
    return build_profile(known, predictions=score, tensors={"x": NAMES, "score": ("score",)}, **more)


class Ground:
    """`ground.count(600, at)` is a delta of a replica; `ground.turn()` a turn of the loop at `ground.now`."""

    def __init__(self, home: Path, here: Any = None, name: str = "score") -> None:
        """Many endpoints may stand in one house: each is a ground of its own."""
        self.home, self.ref = home, Ref("endpoint", "fraud", name)
        self.here = here or falaj.connect(str(home / "house"))
        self.house = self.here.house
        self.desk = self.house.desks["monitor"]
        self.begun = find_slot_start(falaj_now(), MINUTE) + MINUTE
        self.now = self.begun
        self.loop = self.fresh()
        self._numbers: dict[str, int] = {}

    def fresh(self) -> MonitorLoop:
        """Another process that leads."""
        return MonitorLoop(self.house.ledger, self.desk)

    def watched(self, model: Ref) -> "Ground":
        """With a watch that looks every minute."""
        self.here.serve.add(self.ref, model)
        self.turn()
        self.here.monitor.change(self.ref, FEW)
        self.turn()
        return self

    def model(self, seed: int = 7, *, with_: DataProfile | None = None, inputs: Mapping[str, Any] | None = None) -> Ref:
        """A version of a small model."""
        folder = models.mlp(self.home / f"model-{seed}", seed=seed)
        if with_ is not None:
            (folder / PROFILE_FILE).write_bytes(encode_profile(with_))
        made: Ref = self.here.catalog.publish("model:fraud/scorer", str(folder), inputs=inputs or {}).ref
        return made

    def turn(self, to: float = 0.0, loop: MonitorLoop | None = None, alive: bool = True) -> bool:
        """One turn, later."""
        self.now = max(self.now, to)
        ctx = replace(system_context("monitor", self.house.settings.zone), now=lambda: self.now)
        return (loop or self.loop).step(LoopIteration(ctx, id(loop or self.loop), lambda: alive))

    def turns(self, to: float) -> None:
        """As many as there is work for."""
        while self.turn(to):
            pass

    @property
    def record(self) -> Any:
        """The watch as it is kept."""
        with self.house.ledger.read(self.house.system()) as tx:
            return tx.need(Ref("watch", "fraud", self.ref.name))

    @property
    def whose(self) -> RowOwner:
        return RowOwner("house", self.ref, self.house.settings.zone)

    def count(
        self, rows: int, at: float, *, replica: str = "r1-1", revision: int = 1, ids: Any = (), **more: Any
    ) -> DriftCountRow:
        """A delta that a replica flushed at a moment; not kept yet."""
        found = self.desk.baselines.profile("house", self.ref, revision)
        assert found is not None
        tally = DataTally(found)
        number = self._numbers[replica] = self._numbers.get(replica, 0) + 1
        tally.add(columns(rows, seed=sum(self._numbers.values()), **more), ids=ids)
        digest = self.desk.baselines.digest("house", self.ref, revision)
        return DriftCountRow(at - 10, at, revision, replica, number, digest, encode_tally(tally))

    def append(self, *rows: DriftCountRow) -> None:
        """As a gateway does."""
        self.desk.serve.sketches.append(self.whose, rows)

    def ask(self, at: float, requests: int, *, errors: int = 0, revision: int = 1, took_us: int = 900) -> None:
        """What a gateway counted in a second."""
        row = CountRow(
            "house",
            str(self.ref),
            "base",
            revision,
            at,
            requests,
            errors,
            {latency_bucket(took_us): requests},
            0,
            0,
            "g1",
            self.whose.zone,
        )
        self.desk.serve.counts.append([row])

    def log(self, at: float, ids: list[str], scores: list[float], revision: int = 1, seed: int = 0) -> None:
        """Requests that were kept, with what was answered."""
        rng, rows = np.random.default_rng(seed), []
        for id_, score in zip(ids, scores, strict=True):
            values = rng.normal(size=4).round(3).tolist()
            asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": values}]}
            said = {"outputs": [{"name": "score", "datatype": "FP32", "shape": [1, 1], "data": [score]}]}
            bodies = json.dumps(asked).encode(), json.dumps(said).encode()
            rows.append(JournalRow(at, id_, "", "base", revision, 200, 900, "amal", *bodies, "json"))
        self.desk.serve.journal.append(self.whose, rows)

    def windows(self) -> list[Any]:
        """Oldest first."""
        return list(self.desk.windows_of("house", self.ref, 0.0))

    def events(self, verb: str) -> list[Any]:
        """What the log says of this watch."""
        found = self.house.ledger.tail(tenant="house", limit=10_000, verb=verb, name=self.ref.name)
        return [fact.event for fact in found]

    def judged(self) -> int:
        """How many windows the log says were judged."""
        return sum("number" in event.body for event in self.events("monitor.judge"))

    def figures(self, span_s: float) -> ReportFigures:
        """What a report would show of the time before `now`."""
        ctx, body = self.house.system(), self.record.body
        entry, span = body["revisions"]["1"], (self.now - span_s, self.now)
        found: ReportFigures = self.desk._collect_figures(ctx, self.ref, 1, read_plan(body), span, entry)
        return found

    def close(self) -> None:
        self.here.close()


def falaj_now() -> float:
    """The wall clock: what verbs write is of now."""
    import time

    return time.time()


def good(profile_: DataProfile, accuracy: float) -> DataProfile:
    """A profile that knows how good the model was."""
    quality = ModelQuality("binary", {"accuracy": accuracy}, rows=20_000)
    return read_profile(encode_profile(replace(profile_, quality=quality)))
