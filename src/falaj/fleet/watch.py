"""The loop that watches: new samples in, alerts and health out; and the upkeep of what telemetry keeps.

One replica leads. It reads what any of them wrote, so that a node whose launchers report here and there is seen whole;
who leads next reads the last half hour once more, and knows what is open from the records.
"""

import logging
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from falaj.core.context import HOUSE, Context
from falaj.core.errors import FalajError
from falaj.core.execute import NodeFacts
from falaj.fleet import alerts
from falaj.fleet.amounts import mebibytes
from falaj.fleet.anomaly import GAP_S, SlotLimit, Watch
from falaj.fleet.clusters import Clusters
from falaj.fleet.frames import GRID_S, SUMMED
from falaj.fleet.kinds import FAULT, IDLE, LEAK, Sign
from falaj.fleet.pools import pool_loads
from falaj.fleet.records import Cluster
from falaj.fleet.samples import Samples
from falaj.fleet.subjects import DAY_S, HOUR_S, Subject, node_subject, pool_subject, run_subject
from falaj.fleet.telemetry import FLUSH_S
from falaj.fleet.use import every, tenants
from falaj.store.ledger import Ledger, Reader
from falaj.store.loop import Turn
from falaj.store.records import Record
from falaj.worker.sampler import Devices, machine

log = logging.getLogger(__name__)
EVERY_S = 15.0
WARM_S, SILENCE_S = 1800, 300
POOL_S, POOL_SHARE = 60, 0.02
"""Pools are counted every minute, or less often where there is so much to count that it would take a fiftieth."""
SILENT_S: Mapping[str, int] = {FAULT: DAY_S}
"""An alert of which nobody says anything any more ends after an hour; of broken hardware, after a day."""


@dataclass(frozen=True, slots=True)
class Look:
    """What there is to look at in one step."""

    nodes: Mapping[str, tuple[Cluster, NodeFacts]]
    jobs: tuple[Record, ...]
    """Those that hold something."""
    zones: Mapping[str, str]
    lasting: tuple[Record, ...]
    """Alerts that are open."""

    @property
    def running(self) -> list[Record]:
        """Jobs whose attempt has begun."""
        return [record for record in self.jobs if record.body["attempt"] and record.body["attempt"]["started"]]

    def held(self) -> dict[str, dict[int, Record]]:
        """Who has which device of which node."""
        found: dict[str, dict[int, Record]] = {}
        for record in self.running:
            for node, _, devices, _ in record.body["attempt"]["spots"]:
                found.setdefault(node, {}).update(dict.fromkeys(devices, record))
        return found

    def runs(self) -> dict[Subject, Record]:
        """Whose figures there are beside those of nodes."""
        zones = ((record, self.zones.get(record.body["attempt"]["cluster"], record.zone)) for record in self.running)
        return {run_subject(record.key.tenant, record.body["id"], zone): record for record, zone in zones}


class WatchLoop:
    """Watches nodes and runs."""

    name = "telemetry"
    every_s = EVERY_S

    def __init__(self, ledger: Ledger, clusters: Clusters, folder: str) -> None:
        self._ledger, self._clusters, self._folder = ledger, clusters, folder
        self._telemetry = clusters.telemetry
        self._samples = Samples(self._telemetry)
        self._devices: Devices | None = None
        self._forget(0)

    def step(self, turn: Turn) -> bool:
        """Sample this machine and the pools, look at what is new, say what changed, tidy what is over."""
        if turn.token != self._token:
            self._forget(turn.token)
        ctx, now = turn.ctx, turn.ctx.now()
        look = self._look(ctx)
        held = look.held()
        self._sample_here(look, held, now)
        self._count_pools(ctx, look)
        self._telemetry.flush()
        self._watch_nodes(ctx, look, held)
        self._watch_runs(ctx, look)
        self._read_to = now - 2 * FLUSH_S - 2 * GRID_S
        self._end_silent(ctx, look)
        self._tidy(ctx, look)
        return False

    def _forget(self, token: int) -> None:
        self._token = token
        self._watches: dict[Subject, Watch] = {}
        self._heard: dict[Subject, float] = {}
        """Up to when a subject was looked at."""
        self._attempts: dict[Subject, str] = {}
        self._well: dict[str, bool] = {}
        self._pools: set[Subject] = set()
        self._read_to = self._pools_due = 0.0
        self._hour = 0

    def _look(self, ctx: Context) -> Look:
        with self._ledger.read(ctx) as tx:
            nodes = {f"{one.name}/{facts.name}": (one, facts) for one, facts, _ in self._clusters.node_records(tx)}
            zones = {name: cluster.zone for name, cluster in self._clusters.known(tx).items()}
            lasting = tuple(alerts.opened(tx, {HOUSE, *tenants(self._ledger)}))
            return Look(nodes, tuple(self._jobs(tx, "starting", "running", "stopping")), zones, lasting)

    def _jobs(self, tx: Reader, *states: str) -> Iterator[Record]:
        for tenant in tenants(self._ledger):
            for state in states:
                yield from every(tx, "job", tenant, {"state": state})

    # What nobody else samples.

    def _sample_here(self, look: Look, held: Mapping[str, Mapping[int, Record]], now: float) -> None:
        here = platform.node()
        for name, (cluster, facts) in look.nodes.items():
            if cluster.address.startswith("process:") and facts.name == here == facts.labels.get("host"):
                self._devices = self._devices or Devices(None)
                told = self._samples.devices(name, self._devices.read(), [device.index for device in facts.devices])
                # Errors of a device that a launcher watches are counted there.
                counted = {f"{device}.{figure}" for device in held.get(name, ()) for figure in SUMMED}
                told = {key: value for key, value in told.items() if key not in counted}
                figures = {**self._samples.node(name, machine(self._folder), now), **told}
                self._telemetry.put(node_subject(name, cluster.zone), now, figures, now)

    def _count_pools(self, ctx: Context, look: Look) -> None:
        now, began = ctx.now(), time.perf_counter()
        if now < self._pools_due:
            return
        with self._ledger.read(ctx) as tx:
            waiting = (record.body for record in self._jobs(tx, "waiting"))
            nodes = {name: facts for name, (_, facts) in look.nodes.items()}
            loads = pool_loads(nodes, (record.body for record in look.jobs), waiting)
        for pool, load in loads.items():
            self._pools.add(pool_subject(pool, ctx.zone))
            self._telemetry.put(pool_subject(pool, ctx.zone), now, load, now)
        self._pools_due = now + max(POOL_S, (time.perf_counter() - began) / POOL_SHARE)

    # What is new.

    def _fresh(
        self, look: Look, subjects: Iterable[Subject], now: float
    ) -> Iterator[tuple[Subject, int, dict[str, float]]]:
        """Rows that no watch has seen; the newest moments may still grow, and are left for the next step."""
        for subject, frame in self._telemetry.read(subjects, self._read_to or now - WARM_S).items():
            self._watch(look, subject)
            seen = self._heard.get(subject, 0.0)
            for at, figures in frame.between(0, now - 2 * GRID_S).rows():
                if at > seen:
                    self._heard[subject] = at
                    yield subject, at, figures

    def _watch_nodes(self, ctx: Context, look: Look, held: Mapping[str, Mapping[int, Record]]) -> None:
        names = {node_subject(name, cluster.zone): name for name, (cluster, _) in look.nodes.items()}
        ills: dict[str, dict[str, float]] = {}
        for subject, at, figures in self._fresh(look, names, ctx.now()):
            name, mine = names[subject], held.get(names[subject], {})
            owners = {device: record.body["id"] for device, record in mine.items()}
            for sign in self._watches[subject].node(at, figures, owners):
                device = sign.part.removeprefix("GPU ") if sign.kind in (IDLE, LEAK) else ""
                self._say(ctx, alerts.About(name, name, mine.get(int(device)) if device else None), sign)
            for what, amount in _ailments(figures).items():
                ills.setdefault(name, {})[what] = ills.get(name, {}).get(what, 0.0) + amount
        for subject, name in names.items():
            heard = self._heard.get(subject, 0.0)
            silent = name in held and 0 < heard < ctx.now() - SILENCE_S
            well = look.nodes[name][1].ready and not silent
            if self._well.get(name, well) and not well:
                ills.setdefault(name, {})["away"] = 1.0
            self._well[name] = well
        for name, amounts in ills.items():
            alerts.ail(self._ledger, ctx, name, amounts)

    def _watch_runs(self, ctx: Context, look: Look) -> None:
        runs = look.runs()
        limits = {subject: _limits(record) for subject, record in runs.items()}
        for subject, record in runs.items():
            if self._attempts.get(subject) != record.body["attempt"]["id"]:
                self._attempts[subject] = record.body["attempt"]["id"]
                self._watches.pop(subject, None)  # what the attempt before did is nothing that this one did
        for subject, at, figures in self._fresh(look, runs, ctx.now()):
            for sign in self._watches[subject].run(at, figures, limits[subject]):
                slot = sign.part.removeprefix("slot ")
                limit = limits[subject].get(int(slot)) if slot.isdigit() else None
                self._say(ctx, alerts.About(subject.name, limit.node if limit else "", runs[subject]), sign)

    def _watch(self, look: Look, subject: Subject) -> None:
        """Begin where another left off: what is open is open, and what was before that has been looked at."""
        if subject not in self._watches:
            mine = [record.body for record in look.lasting if record.body["of"] == subject.name]
            self._watches[subject] = Watch((body["kind"], body["part"]) for body in mine)
            seen = [body["opened"] for body in mine] + [self._heard.get(subject, 0.0)]
            self._heard[subject] = max(seen)

    def _say(self, ctx: Context, about: alerts.About, sign: Sign) -> None:
        with self._ledger.write(ctx) as tx:
            alerts.say(tx, about, sign, ctx.now())

    def _end_silent(self, ctx: Context, look: Look) -> None:
        """Alerts of attempts that are over, of nodes that are gone, and of those nobody speaks of any more."""
        live, now = {record.body["id"]: record.body["attempt"]["id"] for record in look.running}, ctx.now()
        heard = {subject.name: at for subject, at in self._heard.items()}
        for record in look.lasting:
            body = record.body
            last = max(heard.get(body["of"], 0.0), body["opened"])
            over = bool(body["id"]) and live.get(body["id"]) != body["attempt"]
            gone = bool(body["node"]) and body["node"] not in look.nodes
            if over or gone or now - last > SILENT_S.get(body["kind"], HOUR_S):
                with self._ledger.write(ctx) as tx:
                    fresh = tx.key(record.key)
                    if fresh is not None and not fresh.body["until"]:
                        alerts.end(tx, fresh, now)
                for subject in [one for one in self._watches if one.name == body["of"]]:
                    del self._watches[subject]

    # Upkeep.

    def _tidy(self, ctx: Context, look: Look) -> None:
        """Once an hour, when the last one is surely told."""
        now = ctx.now()
        if int(now - GAP_S) // HOUR_S == self._hour:
            return
        subjects = {*self._heard, *self._pools}
        subjects |= {node_subject(name, cluster.zone) for name, (cluster, _) in look.nodes.items()}
        for subject in sorted(subjects, key=str):
            try:
                self._telemetry.tidy(subject, now)
            except FalajError as error:
                log.warning("telemetry was not tidied", extra={"subject": subject.name, "reason": str(error)})
        live = {record.body["id"] for record in look.jobs} | set(look.nodes)
        for subject in [one for one in self._heard if one.name not in live]:
            del self._heard[subject]
            self._watches.pop(subject, None)
            self._attempts.pop(subject, None)
        for tenant in {HOUSE, *tenants(self._ledger)}:
            self._telemetry.expire(tenant, now)
        self._hour = int(now - GAP_S) // HOUR_S


def _limits(record: Record) -> dict[int, SlotLimit]:
    roles = record.body["spec"]["roles"]
    rows = ((row[0], roles[row[1]]) for row in record.body["attempt"]["spots"])
    return {
        index: SlotLimit(role["name"], node, float(role["cpus"]), float(mebibytes(role["memory"])))
        for index, (node, role) in enumerate(rows)
    }


def _ailments(figures: Mapping[str, float]) -> dict[str, float]:
    """What a sample takes from a node's health."""
    found: dict[str, float] = {}
    for name, value in figures.items():
        device, _, figure = name.partition(".")
        if figure in ("xid", "ecc") and value > 0:
            found[figure] = found.get(figure, 0.0) + value
        elif figure == "throttled" and value > 0 and figures.get(f"{device}.busy", 0.0) > 0:
            found["throttle_h"] = found.get("throttle_h", 0.0) + GRID_S / HOUR_S
    return found
