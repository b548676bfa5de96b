"""Figures: what every room knows of itself, for /metrics. Counted when somebody reads, within bounds, kept a while.

A room that cannot be counted now keeps its last figures and is named in `falaj_figures_failed`; one that has more than
is counted here is named in `falaj_figures_cut`.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from falaj.api.metrics import COUNTER, GAUGE, HISTOGRAM, Family, Row, buckets, by, counter, gauge
from falaj.core import trace
from falaj.core.context import HOUSE, Context
from falaj.core.errors import FalajError
from falaj.core.ports import Key
from falaj.fleet.use import every, tenants
from falaj.store.counts import BOUNDS_S
from falaj.store.ledger import Reader
from falaj.store.objects import as_object
from falaj.store.records import Record

if TYPE_CHECKING:
    from falaj.platform import House

SOON_S, LATER_S = 10.0, 300.0
"""How long figures of rooms are kept: those of things that live, and those of all that is kept."""
SHARE = 0.02
"""Where there is so much to count that it would take more of the time than this, it is counted less often."""
MOST, MOST_SERIES = 20_000, 200
"""Records of one kind that are counted, and series of one metric."""
SHARED_BY = "seal"
"""The loop whose leader tells what all replicas share."""
HEARD_S = 120.0
MIB = 1 << 20


class Look(NamedTuple):
    """What a part counts with."""

    house: "House"
    tx: Reader
    ctx: Context
    tenants: tuple[str, ...]
    cut: set[str]
    """Rooms of which not all was counted."""

    def all(self, room: str, kind: str, terms: Mapping[str, str] | None = None) -> Iterator[Record]:
        """Records of every tenant, as far as they are counted."""
        seen = 0
        for tenant in self.tenants:
            for record in islice(every(self.tx, kind, tenant, terms), MOST - seen + 1):
                seen += 1
                if seen > MOST:
                    self.cut.add(room)
                    return
                yield record


Part = Callable[[Look], Iterable[Family]]


class Figures:
    """The figures of one house."""

    def __init__(self, house: "House") -> None:
        self._house = house
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, list[Family]]] = {}
        self._failed: Counter[str] = Counter()
        self._cut: dict[str, set[str]] = {}

    def families(self) -> list[Family]:
        """All of them; in a thread, since it reads. Two who ask at once cause one count."""
        with self._lock, self._house.ledger.polling():
            shares = tells_shared(self._house)
            found = [*_ledger(self._house), *_loops(self._house), *traces()]
            if shares and "store" in self._house.desks:
                found += _backups(self._house)
            with self._house.ledger.read(self._house.system()) as tx:  # one transaction for all parts
                for room, (every_s, part) in PARTS.items():
                    if room in self._house.desks:
                        counted = self._of(tx, room, every_s, part)
                        found += [family for family in counted if shares or family.kind != GAUGE]
            cut = {room: 1.0 for rooms in self._cut.values() for room in rooms}
            found.append(by("room", "falaj_figures_cut", "Rooms of which only a part is counted here.", cut))
            said = "Times that a room could not be counted."
            return [*found, by("room", "falaj_figures_failed_total", said, self._failed, COUNTER)]

    def _of(self, tx: Reader, room: str, every_s: float, part: Part) -> list[Family]:
        due, kept = self._kept.get(room, (0.0, []))
        now = time.monotonic()
        if now < due:
            return kept
        house, ctx, cut = self._house, self._house.system(), set[str]()
        try:
            known = tuple(sorted({HOUSE, *tenants(house.ledger)}))
            kept = list(part(Look(house, tx, ctx, known, cut)))
            self._cut[room] = cut
        except (FalajError, LookupError, TypeError, ValueError):
            # Also records that are not as they are thought to be: no room may hide the others from whoever watches.
            self._failed[room] += 1
        ended = time.monotonic()
        self._kept[room] = (ended + max(every_s, (ended - now) / SHARE), kept)
        return kept


def tells_shared(house: "House") -> bool:
    """Whether this process tells gauges about what all replicas share: the one that leads the loop SHARED_BY.

    So a sum over replicas counts each thing once. A process that has no such loop is the only one that could tell.
    """
    leads = [loop.leads for loop in house.turned() if loop.loop == SHARED_BY]
    return not leads or any(leads)


def _ledger(house: "House") -> Iterator[Family]:
    counts = house.ledger.counts
    said = "Time to make a group of transactions durable."
    yield Family("falaj_ledger_commit_seconds", said, HISTOGRAM, buckets({}, BOUNDS_S, counts.slots, counts.seconds))
    yield counter("falaj_ledger_transactions_total", "Transactions made durable.", counts.transactions)
    yield by("verb", "falaj_ledger_events_total", "Events written here, by verb.", dict(counts.events), COUNTER)


def _loops(house: "House") -> Iterator[Family]:
    turned = house.turned()
    for name, said, kind, field in (
        ("falaj_loop_leads", "Whether this process leads a loop.", GAUGE, "leads"),
        ("falaj_loop_rest_seconds", "How long a loop rests between steps.", GAUGE, "every_s"),
        ("falaj_loop_last_turn_timestamp_seconds", "When a loop last looked, without failing.", GAUGE, "at"),
        ("falaj_loop_steps_total", "Steps of a loop.", COUNTER, "steps"),
        ("falaj_loop_failures_total", "Steps of a loop that failed.", COUNTER, "failures"),
        ("falaj_loop_step_seconds_total", "Time in steps of a loop.", COUNTER, "seconds"),
    ):
        yield by("loop", name, said, {one.loop: float(getattr(one, field)) for one in turned}, kind)


def traces() -> Iterator[Family]:
    """What became of spans."""
    sent, dropped = trace.told()
    yield counter("falaj_trace_spans_total", "Spans sent to the collector.", sent)
    yield counter("falaj_trace_spans_dropped_total", "Spans that were not sent.", dropped)


def _jobs(look: Look) -> Iterator[Family]:
    from falaj.jobs.records import WAITED_S

    now, states, waits = look.ctx.now(), Counter[tuple[str, str]](), dict[str, float]()
    for record in look.all("jobs", "job", {"live": "1"}):
        state, queue = record.body["state"], record.body["queue"]
        states[state, queue] += 1
        if state == "waiting":
            waits[queue] = max(waits.get(queue, 0.0), now - record.body["submitted"])
    rows = [("", {"state": state, "queue": queue}, num) for (state, queue), num in sorted(states.items())]
    yield Family("falaj_jobs", "Jobs that are not over, by state and queue.", GAUGE, rows[:MOST_SERIES])
    yield by("queue", "falaj_jobs_oldest_wait_seconds", "How long the oldest waiting job waits.", waits)
    desk = look.house.desks["jobs"]
    yield by("outcome", "falaj_attempts_total", "Attempts that ended, by outcome.", dict(desk.ended), COUNTER)
    said = "How long attempts that ended had waited to begin."
    begun = buckets({}, WAITED_S, desk.waited, desk.waited_s)
    yield Family("falaj_attempts_waited_seconds", said, HISTOGRAM, begun)


def _clusters(look: Look) -> Iterator[Family]:
    from falaj.fleet.alerts import healths, opened

    nodes = list(islice(look.house.desks["clusters"].node_records(look.tx), MOST))
    states, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for cluster, facts, _ in nodes:
        states[cluster.name, "drained" if facts.name in cluster.drained else "open" if facts.ready else "away"] += 1
        sizes[cluster.name, "gpu"] += 1000 * len(facts.devices)
        sizes.update({(cluster.name, what): facts.amounts.get(what, 0) for what in ("cpu", "memory")})
    used = Counter[tuple[str, str]]()
    for record in look.all("clusters", "job", {"live": "1"}):
        for node, held in record.body["use"]["nodes"].items():
            used.update({(node.partition("/")[0], what): held.get(what, 0) for what in ("cpu", "memory", "gpu")})
    rows = [("", {"cluster": name, "state": state}, num) for (name, state), num in sorted(states.items())]
    yield Family("falaj_cluster_nodes", "Nodes by cluster and state.", GAUGE, rows)
    for what, name, unit in (("cpu", "cpu_cores", 1e-3), ("memory", "memory_bytes", MIB), ("gpu", "gpus", 1e-3)):
        whole = {cluster: num * unit for (cluster, kind), num in sizes.items() if kind == what}
        held = {cluster: used[cluster, what] * unit for cluster in whole}
        yield by("cluster", f"falaj_cluster_{name}", "What nodes have.", whole)
        yield by("cluster", f"falaj_cluster_used_{name}", "What jobs hold of it.", held)
    alerts = Counter(str(record.body["kind"]) for record in opened(look.tx, look.tenants))
    yield by("kind", "falaj_cluster_alerts", "Alerts of nodes and jobs that last.", alerts)
    names = [f"{cluster.name}/{facts.name}" for cluster, facts, _ in nodes]
    ill = {one.node: float(one.score) for one in healths(look.tx, names, look.ctx.now())[:MOST_SERIES]}
    yield by("node", "falaj_node_health_score", "100 is well, 0 as ill as can be; the most ill nodes.", ill)
    yield from _devices(look, nodes)


def _devices(look: Look, nodes: "list[Any]") -> Iterator[Family]:
    """What telemetry last heard of GPUs, node by node."""
    from falaj.fleet.subjects import node_subject

    with_gpus = [(cluster, facts) for cluster, facts, _ in nodes if facts.devices][:MOST_SERIES]
    subjects = {node_subject(f"{cluster.name}/{facts.name}", cluster.zone): 0 for cluster, facts in with_gpus}
    telemetry = look.house.desks["clusters"].telemetry
    frames = telemetry.read(subjects, look.ctx.now() - HEARD_S) if subjects else {}
    for name, said, figure, unit in (
        ("falaj_node_gpu_busy_ratio", "How busy the GPUs of a node are.", ".busy", 0.01),
        ("falaj_node_gpu_memory_used_bytes", "Memory used on the GPUs of a node, on average.", ".memory", MIB),
    ):
        found = {}
        for subject, frame in frames.items():
            last = [values[-1] for key, values in frame.columns.items() if key.endswith(figure) and len(values)]
            known = [float(value) for value in last if not math.isnan(value)]
            if known:
                found[subject.name] = unit * sum(known) / len(known)
        yield by("node", name, said, found)


def _audit(look: Look) -> Iterator[Family]:
    ledger, now = look.house.ledger, look.ctx.now()
    sealed = newest = oldest = 0.0
    late = 0
    logs = ledger.logs()
    for tenant, zone in logs[:MOST_SERIES]:
        head = look.tx.key(Key(tenant, "checkpoint", zone, "head"))
        sealed += head.body["size"] if head else 0
        newest = max(newest, head.at if head else 0.0)
        for row in ledger.store.events(head.body["pos"] if head else "", tenant=tenant, zone=zone, limit=1):
            late, oldest = late + 1, max(oldest, now - row.at)
    if len(logs) > MOST_SERIES:
        look.cut.add("audit")
    yield gauge("falaj_audit_logs", "Logs of events: one for each tenant and zone.", len(logs))
    yield gauge("falaj_audit_sealed_events", "Events under a checkpoint.", sealed)
    yield gauge("falaj_audit_unsealed_logs", "Logs with events that no checkpoint holds yet.", late)
    yield gauge("falaj_audit_oldest_unsealed_seconds", "Age of the oldest event without a checkpoint.", oldest)
    yield gauge("falaj_audit_checkpoint_timestamp_seconds", "When the newest checkpoint was made.", newest)


def _store(look: Look) -> Iterator[Family]:
    sizes, numbers = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for record in look.all("store", "object"):
        if record.key.project != "store":
            continue  # where a loop stands, or who writes now
        thing = as_object(record)
        if not thing.parts:  # what is made of parts holds no bytes of its own
            sizes[thing.zone, thing.state] += thing.size
            numbers[thing.zone, thing.state] += 1
    for name, said, found in (
        ("falaj_blobs_bytes", "Bytes that are kept, by zone and state.", sizes),
        ("falaj_blobs_objects", "Objects that are kept, by zone and state.", numbers),
    ):
        rows = [("", {"zone": zone, "state": state}, num) for (zone, state), num in sorted(found.items())]
        yield Family(name, said, GAUGE, rows[:MOST_SERIES])


def _backups(house: "House") -> Iterator[Family]:
    """When the newest backup was made, and how often one should be; nothing where none was ever wanted."""
    kept = house.storage.kept
    try:
        last = kept.last(house.system()) if kept is not None else {}
    except FalajError:
        return
    every_s = kept.plan.every_s if kept is not None and kept.plan.to else float(last.get("every_s", 0.0))
    if every_s:
        at, said = float(last.get("at", 0.0)), "When the newest backup was made; 0: there is none."
        yield gauge("falaj_backup_newest_timestamp_seconds", said, at)
        yield gauge("falaj_backup_every_seconds", "How often a backup should be made.", every_s)


def _catalog(look: Look) -> Iterator[Family]:
    kinds = ("dataset", "model", "code")
    found = {kind: float(sum(bool(one.key.version) for one in look.all("catalog", kind))) for kind in kinds}
    yield by("kind", "falaj_catalog_versions", "Versions that are kept, by kind.", found)


def _features(look: Look) -> Iterator[Family]:
    rows = [
        ("", {"tenant": one.key.tenant, "stream": f"{one.key.project}/{one.key.name}"}, one.body["newest_us"] / 1e6)
        for one in look.all("features", "stream", {"stream": "yes"})
    ]
    desk = look.house.desks["features"]
    yield counter("falaj_feature_reads_total", "Reads of online features through the platform.", desk.reads)
    yield counter("falaj_feature_rows_read_total", "Rows that those reads asked for.", desk.rows_read)
    yield gauge("falaj_feature_streams", "Streams of rows that feature views keep.", len(rows))
    said = "The moment of the newest row of a feature view's stream."
    yield Family("falaj_feature_newest_timestamp_seconds", said, GAUGE, _bounded(look, "features", rows))


def _serve(look: Look) -> Iterator[Family]:
    states, ready = Counter[str](), Counter[str]()
    for record in look.all("serve", "replica"):
        states[str(record.body["state"])] += 1
        ready[str(record.body["endpoint"])] += record.body["state"] == "ready"
    kept = list(look.all("serve", "endpoint"))
    found = Counter("stopped" if record.body["stopped"] else "open" for record in kept)
    yield by("state", "falaj_endpoints", "Endpoints by state.", found)
    yield by("state", "falaj_replicas", "Replicas by state.", states)
    rows = [
        ("", {"tenant": one.key.tenant, "endpoint": str(one.ref.bare)}, float(ready[str(one.body["id"])]))
        for one in kept
    ]
    said = "Replicas of an endpoint that answer."
    yield Family("falaj_endpoint_ready_replicas", said, GAUGE, _bounded(look, "serve", rows))


def _monitor(look: Look) -> Iterator[Family]:
    watches = Counter(
        "paused" if record.body["paused"] else str(record.body["state"])
        for record in look.all("monitor", "watch", {"live": "1"})
    )
    yield by("state", "falaj_watches", "Watches of endpoints by state.", watches)
    rows = Counter[tuple[str, str]]()
    for record in look.all("monitor", "incident", {"live": "1"}):
        rows[str(record.body["state"]), str(record.body["what"])] += 1
    found = [("", {"state": state, "what": what}, num) for (state, what), num in sorted(rows.items())]
    yield Family("falaj_incidents", "Incidents that are not resolved.", GAUGE, _bounded(look, "monitor", found))


def _flows(look: Look) -> Iterator[Family]:
    runs = Counter(str(record.body["state"]) for record in look.all("flows", "turn", {"live": "1"}))
    yield by("state", "falaj_flow_runs", "Runs of flows that are not over.", runs)
    waiting = {
        state: float(sum(1 for _ in look.all("flows", "delivery", {"state": state}))) for state in ("waiting", "dead")
    }
    yield by("state", "falaj_hook_deliveries", "Deliveries to hooks that wait, or were given up.", waiting)


def _sweeps(look: Look) -> Iterator[Family]:
    found = Counter(str(record.body["state"]) for record in look.all("sweeps", "sweep", {"live": "1"}))
    yield by("state", "falaj_sweeps", "Searches for parameters that are not over.", found)


PARTS: Mapping[str, tuple[float, Part]] = {
    "jobs": (SOON_S, _jobs), "clusters": (SOON_S, _clusters), "audit": (SOON_S, _audit), "serve": (SOON_S, _serve),
    "monitor": (SOON_S, _monitor), "flows": (SOON_S, _flows), "sweeps": (SOON_S, _sweeps),
    "features": (SOON_S, _features), "store": (LATER_S, _store), "catalog": (LATER_S, _catalog),
}  # fmt: skip
"""By the desk they belong to."""


def _bounded(look: Look, room: str, rows: Sequence[Row]) -> Sequence[Row]:
    if len(rows) > MOST_SERIES:
        look.cut.add(room)
    return rows[:MOST_SERIES]
