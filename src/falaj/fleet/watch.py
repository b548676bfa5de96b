"""The loop that watches: new samples in, alerts and health out; and the upkeep of what telemetry keeps.

One replica leads. It reads what any of them wrote, so that a node whose launchers report here and there is seen whole;
who leads next reads the last half hour once more, and knows what is open from the records.
"""

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from falaj.core.context import HOUSE, Context
from falaj.core.execute import NodeFacts
from falaj.fleet import alerts
from falaj.fleet.amounts import mebibytes
from falaj.fleet.anomaly import FAULT, GAP_S, IDLE, LEAK, Sign, SlotLimit, Watch
from falaj.fleet.clusters import Clusters
from falaj.fleet.frames import GRID_S, SUMMED
from falaj.fleet.records import Cluster
from falaj.fleet.samples import Samples, run_subject
from falaj.fleet.telemetry import DAY_S, HOUR_S, LATE_S, Subject, node_subject
from falaj.fleet.use import live_jobs, tenants
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn
from falaj.store.records import Record
from falaj.worker.sampler import Devices, machine

EVERY_S = 15.0
WARM_S = 1800
POOL_S = 60
SILENT_S: Mapping[str, int] = {FAULT: DAY_S}
"""An alert of which nobody says anything any more ends after an hour; of broken hardware, after a day."""


@dataclass(slots=True)
class Look:
    """What there is to look at in one step: nodes, and jobs that run."""

    nodes: dict[str, tuple[Cluster, NodeFacts]]
    jobs: list[Record]
    zones: Mapping[str, str]
    lasting: list[Record]
    """Alerts that are open."""
    held: dict[str, dict[int, Record]] = field(default_factory=dict)
    """Who has which device of which node."""

    def __post_init__(self) -> None:
        for record in self.running:
            for node, _, devices, _ in record.body["attempt"]["spots"]:
                self.held.setdefault(node, {}).update(dict.fromkeys(devices, record))

    @property
    def running(self) -> list[Record]:
        """Jobs whose attempt has begun."""
        return [record for record in self.jobs if record.body["attempt"] and record.body["attempt"]["started"]]

    def zone(self, record: Record) -> str:
        """Where a job runs."""
        return self.zones.get(record.body["attempt"]["cluster"], record.zone)


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
        self._sample(ctx, look)
        self._telemetry.flush()
        self._watch_nodes(ctx, look)
        self._watch_runs(ctx, look)
        self._read_to = now - LATE_S
        self._end_silent(ctx, look)
        self._tidy(ctx, look)
        return False

    def _forget(self, token: int) -> None:
        self._token = token
        self._watches: dict[Subject, Watch] = {}
        self._heard: dict[Subject, float] = {}
        """Up to when a subject was looked at."""
        self._ready: dict[str, bool] = {}
        self._read_to = 0.0
        self._hour = self._pooled = 0

    def _look(self, ctx: Context) -> Look:
        with self._ledger.read(ctx) as tx:
            nodes = {f"{c.name}/{facts.name}": (c, facts) for c, facts, _ in self._clusters.node_records(tx)}
            zones = {name: cluster.zone for name, cluster in self._clusters.known(tx).items()}
            lasting = list(alerts.opened(tx, {HOUSE, *tenants(self._ledger)}))
            return Look(nodes, list(live_jobs(self._ledger, tx)), zones, lasting)

    # What nobody else samples.

    def _sample(self, ctx: Context, look: Look) -> None:
        here, now = platform.node(), ctx.now()
        for name, (cluster, facts) in look.nodes.items():
            if cluster.address.startswith("process:") and facts.name == here == facts.labels.get("host"):
                self._devices = self._devices or Devices(None)
                held = look.held.get(name, {})
                told = self._samples.devices(name, self._devices.read(), [device.index for device in facts.devices])
                # Errors of a device that a launcher watches are counted there.
                counted = {f"{device}.{figure}" for device in held for figure in SUMMED}
                told = {key: value for key, value in told.items() if key not in counted}
                figures = {**self._samples.node(name, machine(self._folder), now), **told}
                self._telemetry.put(node_subject(name, cluster.zone), now, figures, now)
        if int(now) // POOL_S != self._pooled:
            self._pooled = int(now) // POOL_S
            for pool, load in pool_loads(look).items():
                self._telemetry.put(pool_subject(pool, ctx.zone), now, load, now)

    # What is new.

    def _fresh(self, subjects: Iterable[Subject], now: float) -> Iterable[tuple[Subject, int, dict[str, float]]]:
        """Rows that no watch has seen; the newest moments may still grow, and are left for the next step."""
        for subject, frame in self._telemetry.read(subjects, self._read_to or now - WARM_S).items():
            seen = self._heard.get(subject, 0.0)
            for at, figures in frame.between(0, now - 2 * GRID_S).rows():
                if at > seen:
                    self._heard[subject] = at
                    yield subject, at, figures

    def _watch_nodes(self, ctx: Context, look: Look) -> None:
        names = {node_subject(name, cluster.zone): name for name, (cluster, _) in look.nodes.items()}
        ills: dict[str, dict[str, float]] = {}
        for name, (_, facts) in look.nodes.items():
            if self._ready.get(name, facts.ready) and not facts.ready:
                ills[name] = {"away": 1.0}
            self._ready[name] = facts.ready
        for subject, at, figures in self._fresh(names, ctx.now()):
            name, held = names[subject], look.held.get(names[subject], {})
            owners = {device: record.body["id"] for device, record in held.items()}
            for sign in self._watching(look, subject).node(at, figures, owners):
                device = sign.part.removeprefix("GPU ") if sign.kind in (IDLE, LEAK) else ""
                owner = held.get(int(device)) if device else None
                self._say(ctx, look, subject, alerts.About(name, owner), sign)
            for what, amount in _ailments(figures).items():
                ills.setdefault(name, {})[what] = ills.get(name, {}).get(what, 0.0) + amount
        for name, amounts in ills.items():
            alerts.ail(self._ledger, ctx, name, amounts)

    def _watch_runs(self, ctx: Context, look: Look) -> None:
        runs = {run_subject(r.key.tenant, r.body["id"], look.zone(r)): r for r in look.running}
        limits = {subject: _limits(record) for subject, record in runs.items()}
        for subject, at, figures in self._fresh(runs, ctx.now()):
            for sign in self._watching(look, subject).run(at, figures, limits[subject]):
                slot = sign.part.removeprefix("slot ")
                node = limits[subject][int(slot)].node if slot.isdigit() and int(slot) in limits[subject] else ""
                self._say(ctx, look, subject, alerts.About(node, runs[subject]), sign)

    def _watching(self, look: Look, subject: Subject) -> Watch:
        if subject not in self._watches:
            mine = [record.body for record in look.lasting if _is_about(record, subject)]
            self._watches[subject] = Watch((body["kind"], body["part"]) for body in mine)
        return self._watches[subject]

    def _say(self, ctx: Context, look: Look, subject: Subject, about: alerts.About, sign: Sign) -> None:
        with self._ledger.write(ctx) as tx:
            if sign.opens:
                alerts.raise_alert(tx, about, sign, ctx.now())
            for record in look.lasting if not sign.opens else ():
                if _is_about(record, subject) and (record.body["kind"], record.body["part"]) == (sign.kind, sign.part):
                    alerts.end_alert(tx, record, sign.since)

    def _end_silent(self, ctx: Context, look: Look) -> None:
        """Alerts of jobs that are over, of nodes that are gone, and of those nobody speaks of any more."""
        live, now = {record.body["id"] for record in look.running}, ctx.now()
        heard = {subject.name: at for subject, at in self._heard.items()}
        for record in look.lasting:
            body = record.body
            last = max(heard.get(body["id"], 0.0), heard.get(body["node"], 0.0), body["opened"])
            over = bool(body["id"]) and body["id"] not in live
            gone = bool(body["node"]) and body["node"] not in look.nodes
            if over or gone or now - last > SILENT_S.get(body["kind"], HOUR_S):
                with self._ledger.write(ctx) as tx:
                    alerts.end_alert(tx, record, now)
                for subject in [one for one in self._watches if one.name in (body["id"], body["node"])]:
                    del self._watches[subject]

    # Upkeep.

    def _tidy(self, ctx: Context, look: Look) -> None:
        """Once an hour, when the last one is surely told."""
        now = ctx.now()
        if int(now - GAP_S) // HOUR_S == self._hour:
            return
        subjects = {*self._heard, *(pool_subject(pool, ctx.zone) for pool in pool_loads(look))}
        subjects |= {node_subject(name, cluster.zone) for name, (cluster, _) in look.nodes.items()}
        for subject in sorted(subjects, key=str):
            self._telemetry.tidy(subject, now)
        live = {record.body["id"] for record in look.jobs} | set(look.nodes)
        for subject in [one for one in self._heard if one.name not in live]:
            del self._heard[subject]
            self._watches.pop(subject, None)
        for tenant in {HOUSE, *tenants(self._ledger)}:
            self._telemetry.expire(tenant, now)
        self._hour = int(now - GAP_S) // HOUR_S


def pool_subject(pool: str, zone: str) -> Subject:
    """The figures of a pool: a model of GPU, or the CPUs."""
    return Subject(HOUSE, "pool", pool, zone)


def pool_loads(look: Look) -> dict[str, dict[str, float]]:
    """What every pool has, holds and waits for, and in what pieces it is free: in thousandths of a GPU or CPU."""
    pools: dict[str, dict[str, float]] = {}
    used: dict[str, dict[str, int]] = {}
    for record in look.jobs:
        for node, amounts in record.body["use"]["nodes"].items():
            for name, value in amounts.items():
                used.setdefault(node, {})[name] = used.get(node, {}).get(name, 0) + value
    for node, (_, facts) in look.nodes.items():
        have: dict[str, int] = {"cpu": facts.amounts.get("cpu", 0)}
        for device in facts.devices:
            have[f"gpu:{device.model}"] = have.get(f"gpu:{device.model}", 0) + 1000
        for pool, amount in have.items():
            load = pools.setdefault(pool, dict.fromkeys(("capacity", "held", "waiting", "empty", "largest"), 0.0))
            held = used.get(node, {}).get(pool, 0)
            free = float(max(0, amount - held) if facts.ready else 0)
            load["capacity"] += amount
            load["held"] += held
            load["empty"] += 0.0 if held else free
            load["largest"] = max(load["largest"], free)
    for record in look.jobs:
        for pool, wanted in _wanted(record, pools).items() if not record.body["attempt"] else ():
            pools[pool]["waiting"] += wanted
    return pools


def _wanted(record: Record, pools: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What a waiting job asks for, in the pool that it would most likely go to."""
    found: dict[str, float] = {}
    for role in record.body["spec"]["roles"]:
        models = [f"gpu:{model}" for model in role["gpu_models"]] or [name for name in pools if name != "cpu"]
        fits = [name for name in models if name in pools] if role["gpus"] else ["cpu"]
        amount = (role["gpus"] or role["cpus"]) * 1000 * role["count"]
        if fits and fits[0] in pools:
            pool = max(fits, key=lambda name: pools[name]["capacity"])
            found[pool] = found.get(pool, 0.0) + amount
    return found


def _is_about(record: Record, subject: Subject) -> bool:
    """Whether the watch of a subject is what opened an alert, and closes it."""
    return bool(record.body["node" if subject.kind == "node" else "id"] == subject.name)


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
