"""The loop that watches: alerts opened and closed once, through deaths of the leader; health; what tenants see."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.core.executor import Device, NodeInfo
from falaj.fleet.alerts import sum_idle_seconds
from falaj.fleet.telemetry import TelemetryStore
from falaj.fleet.telemetry_loop import TelemetryLoop
from falaj.fleet.telemetry_targets import HOUR_S, make_node_target, make_pool_target, make_run_target
from falaj.jobs import state_machine
from falaj.jobs.records import JobSpec, RoleSpec
from falaj.store.reconcile_loop import LoopIteration
from tests.town import Town

NODE = make_node_target("hall/n1", "ae-dubai")
START = 1_800_000_000.0


class Hall:
    """A town with a cluster whose one node has two GPUs, and a job of the bank that holds both."""

    def __init__(self, home: Path) -> None:
        self.town = Town(home)
        self.house = self.town.house
        self.clusters = self.house.desks["clusters"]
        self.telemetry: TelemetryStore = self.clusters.telemetry
        self.now = START
        self.ctx = replace(self.house.system(), now=lambda: self.now)
        self.town.as_("admin").clusters.add("hall", "process:?nodes=1", "ae-dubai")
        self.tell_nodes()
        spec = JobSpec(("python",), (RoleSpec(gpus=2, cpus=4, memory="8GiB"),))
        self.job = self.town.as_("amal").jobs.add("job:fraud/train", spec)
        self.run = make_run_target("bank", self.job.run.name, "ae-dubai")
        self.start()
        self.loop = TelemetryLoop(self.house.ledger, self.clusters, str(home))

    def tell_nodes(self, *, ready: bool = True) -> None:
        """The node as its cluster tells of it."""
        facts = NodeInfo("n1", {"cpu": 8000, "memory": 16_000}, (Device(0, "H100"), Device(1, "H100")), ready=ready)
        with self.house.ledger.project(self.ctx) as tx:
            self.clusters.write_nodes(tx, "hall", {"n1": facts})

    def start(self, name: str = "train-1") -> None:
        """Write the job down as running, as its own loop would."""
        ctx = replace(self.ctx, tenant="bank")
        with self.house.ledger.write(ctx) as tx:
            old = tx.need(self.job.ref)
            attempt = {"id": name, "number": 1, "cluster": "hall", "started": START, "stop": None, "band": 2}
            attempt["spots"] = [["hall/n1", 0, [0, 1], 1000]]
            use = {**old.body["use"], "nodes": {"hall/n1": {"gpu": 2000, "gpu:H100": 2000, "cpu": 4000}}}
            body = {**old.body, "state": "running", "attempt": attempt, "use": use}
            tx.emit("jobs.start", tx.put(old.key, body, rev=old.rev, terms=state_machine.build_index_terms(body)).ref)

    def end(self) -> None:
        """The job is over."""
        ctx = replace(self.ctx, tenant="bank")
        with self.house.ledger.write(ctx) as tx:
            old = tx.need(self.job.ref)
            body = {**old.body, "state": "succeeded", "attempt": None}
            tx.emit("jobs.end", tx.put(old.key, body, rev=old.rev, terms=state_machine.build_index_terms(body)).ref)

    def pass_time(self, minutes: float, token: int = 1, *, run: bool = False, **figures: float) -> None:
        """Samples every 15 seconds, and the loop's step."""
        for _ in range(int(minutes * 4)):
            self.now += 15
            told = {name.replace("_", ".", 1): value for name, value in figures.items()}
            self.telemetry.put(self.run if run else NODE, self.now, told, self.now)
            self.loop.step(LoopIteration(self.ctx, token, lambda: True))


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    made = Hall(tmp_path / "house")
    yield made
    made.town.close()


def alerts(hall: Hall, who: str, *, every: bool = False) -> list[tuple[str, str, str, bool]]:
    found = hall.town.as_(who).clusters.alerts(every=every, since="390d")
    return sorted((one.kind, one.part, one.job, bool(one.until)) for one in found)


def test_an_idle_gpu_is_said_once_and_ends_with_its_job(hall: Hall) -> None:
    hall.pass_time(12, **{"0_busy": 90.0, "1_busy": 90.0})
    hall.pass_time(9, **{"0_busy": 0.0, "1_busy": 90.0})
    assert alerts(hall, "amal") == []
    hall.pass_time(4, **{"0_busy": 0.0, "1_busy": 90.0})
    assert alerts(hall, "amal") == [("gpu-idle", "0", "job:fraud/train", False)]
    assert alerts(hall, "admin") == [("gpu-idle", "0", "a job of bank", False)]
    assert alerts(hall, "sara") == []
    hall.pass_time(5, token=2, **{"0_busy": 0.0, "1_busy": 90.0})  # another leads
    assert alerts(hall, "amal", every=True) == [("gpu-idle", "0", "job:fraud/train", False)]
    hall.end()
    hall.pass_time(0.5, token=2, **{"0_busy": 0.0, "1_busy": 0.0})
    assert alerts(hall, "amal") == []
    assert alerts(hall, "amal", every=True) == [("gpu-idle", "0", "job:fraud/train", True)]
    with hall.house.ledger.read(hall.ctx) as tx:
        (idle_s,) = sum_idle_seconds(tx, "bank", START, hall.now).values()
    assert idle_s == pytest.approx(18 * 60, abs=60)
    said = [event.verb for event in hall.town.events("bank") if event.subject.kind == "alert"]
    assert said == ["clusters.alert", "clusters.calm"]


def test_the_next_attempt_begins_with_a_clean_sheet(hall: Hall) -> None:
    full = {"0_busy": 20.0, "0_cpu": 4.0}
    hall.pass_time(13, run=True, **full)
    assert [kind for kind, *_ in alerts(hall, "amal")] == ["gpu-starved"]
    hall.start("train-2")
    hall.pass_time(9, run=True, **full)
    assert alerts(hall, "amal") == []
    hall.pass_time(4, run=True, **full)
    assert [over for *_, over in alerts(hall, "amal", every=True)] == [False, True]


def test_heat_opens_and_closes_and_errors_make_a_node_ill(hall: Hall) -> None:
    hot = {"0_busy": 95.0, "0_temperature": 90.0, "0_clock": 900.0, "0_clock_most": 1980.0, "0_throttled": 100.0}
    hall.pass_time(5, **hot)
    assert alerts(hall, "admin") == [("gpu-hot", "0", "", False)]
    assert alerts(hall, "amal") == []
    hall.pass_time(12, **{"0_busy": 95.0, "0_temperature": 70.0, "0_clock": 1900.0, "0_throttled": 0.0})
    assert alerts(hall, "admin") == []
    assert hall.town.as_("ola").clusters.health() == ()
    hall.pass_time(1.25, **{"0_busy": 50.0, "0_xid": 1.0})
    (ill,) = hall.clusters.health(hall.ctx)
    assert (ill.node, ill.verdict) == ("hall/n1", "ill")
    assert "XID" in ill.why[0]
    assert ("gpu-fault", "0", "", False) in alerts(hall, "admin")


def test_a_node_that_goes_away_again_and_again_is_watched(hall: Hall) -> None:
    for ready in (True, False) * 3:
        hall.tell_nodes(ready=ready)
        hall.pass_time(0.25, load=1.0)
    (seen,) = hall.clusters.health(hall.ctx)
    assert (seen.verdict, round(seen.parts["away"])) == ("watch", 24)


def test_pools_know_what_is_held_hour_by_hour(hall: Hall) -> None:
    hall.pass_time(2, load=1.0)
    (gpus, cpus) = hall.clusters.pools(hall.ctx, "24h")
    assert (gpus.pool, gpus.capacity, gpus.held, gpus.empty) == ("gpu:H100", 2, 2, 0)
    assert (cpus.pool, cpus.held, cpus.largest) == ("cpu", 4, 4)
    assert gpus.hours[-1] == 2
    hall.now += HOUR_S
    hall.end()
    hall.pass_time(10, load=1.0)
    assert len(hall.telemetry.read([make_pool_target("cpu", "ae-dubai")], START, "hour").popitem()[1]) == 2
    (now,) = hall.clusters.figures(hall.ctx)
    assert (now.node, now.figures["load"]) == ("hall/n1", 1.0)
    assert hall.clusters.history(hall.ctx, "hall/n1")[0].name == "load"
