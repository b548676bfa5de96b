"""Alerts as records: opened once, closed once, each with an event; and what went wrong with nodes, for their health."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.data import dataclass
from falaj.core.event import generate_id
from falaj.core.ports import RecordKey
from falaj.fleet import health
from falaj.fleet.alert_kinds import ADVICE, IDLE, AlertSignal
from falaj.fleet.fleet_use import iter_records, make_system_key
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

ALERT_KIND = "alert"
OPEN_TERMS: Mapping[str, str] = {"open": "1"}


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that looks wrong on a node or in a job, or looked so."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("since", "until", "kind", "node", "job", "text", "advice")

    kind: str
    node: str
    job: str
    """Whose: a job you may see, or only its tenant."""
    part: str
    since: float
    until: float
    """0 while it lasts."""
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class AlertSubject:
    """What an alert is about: whose figures showed it, on which node, and which job's business it is, if one's."""

    of: str
    node: str
    job: LedgerRecord | None = None

    @property
    def tenant(self) -> str:
        """Whose alert it is."""
        return self.job.key.tenant if self.job else SYSTEM_TENANT

    def mark(self, kind: str, part: str) -> str:
        """What makes two alerts the same."""
        return f"{kind}|{part}|{self.of}"


def update_alert(tx: LedgerWriter, subject: AlertSubject, signal: AlertSignal, now: float) -> None:
    """Open an alert, or close it; the same again is nothing new."""
    dedup_key = subject.mark(signal.kind, signal.part)
    open_records = tx.find(ALERT_KIND, tenant=subject.tenant, terms={"mark": dedup_key, **OPEN_TERMS}).records
    if signal.opens and not open_records:
        _open_alert(tx, subject, signal, now)
    for record in open_records if not signal.opens else ():
        close_alert(tx, record, signal.since)


def _open_alert(tx: LedgerWriter, subject: AlertSubject, signal: AlertSignal, now: float) -> None:
    job = subject.job
    job_name = str(job.ref.bare) if job else ""
    body = {
        "kind": signal.kind, "part": signal.part, "of": subject.of, "node": subject.node, "job": job_name,
        "id": job.body["id"] if job else "", "attempt": job.body["attempt"]["id"] if job else "",
        "since": signal.since, "opened": now, "until": 0.0, "text": signal.text,
    }  # fmt: skip
    key = RecordKey(
        subject.tenant, ALERT_KIND, job.key.project if job else SYSTEM_TENANT, f"{signal.kind}-{generate_id()}"
    )
    label, zone = (job.label, job.zone) if job else (None, "")
    terms = {"mark": subject.mark(signal.kind, signal.part), "kind": signal.kind, **OPEN_TERMS}
    record = tx.put(key, body, label=label, zone=zone, terms=terms)
    tx.emit("clusters.alert", record.ref, (), tenant=subject.tenant, kind=signal.kind, node=subject.node, job=job_name)


def close_alert(tx: LedgerWriter, previous: LedgerRecord, until: float) -> None:
    """Close an alert."""
    terms = {name: value for name, value in previous.terms.items() if name != "open"}
    record = tx.put(previous.key, {**previous.body, "until": until}, rev=previous.rev, terms=terms)
    kind, node, job = (str(previous.body[name]) for name in ("kind", "node", "job"))
    tx.emit("clusters.calm", record.ref, tenant=previous.key.tenant, kind=kind, node=node, job=job)


def iter_open_alerts(tx: LedgerReader, tenants: Iterable[str]) -> Iterator[LedgerRecord]:
    """Every alert that lasts."""
    for tenant in tenants:
        yield from iter_records(tx, ALERT_KIND, tenant, OPEN_TERMS)


def list_alerts(
    ctx: CallContext, tx: LedgerReader, tenants: Iterable[str], since: float, *, lasting: bool
) -> list[Alert]:
    """Alerts that a caller may see, newest first. Of others' jobs the house sees that there is one, and whose."""
    alerts: list[Alert] = []
    for tenant in tenants:
        is_own = tenant == ctx.tenant
        visible_scopes = ctx.cells(ALERT_KIND) if is_own else None
        records = _iter_recent(tx, tenant, OPEN_TERMS if lasting else {}, since, visible_scopes)
        alerts += [_to_alert(record.body, "" if is_own else tenant) for record in records]
    return sorted(alerts, key=lambda alert: -alert.since)


def sum_idle_seconds(tx: LedgerReader, tenant: str, since: float, until: float) -> dict[str, float]:
    """GPU-seconds that jobs held idle in a window, by the id of the job."""
    idle_by_job: dict[str, float] = {}
    for record in _iter_recent(tx, tenant, {"kind": IDLE}, since, None):
        body = record.body
        overlap_s = min(until, body["until"] or until) - max(since, body["since"])
        if overlap_s > 0 and body["id"]:
            idle_by_job[body["id"]] = idle_by_job.get(body["id"], 0.0) + overlap_s
    return idle_by_job


def _iter_recent(
    tx: LedgerReader, tenant: str, terms: Mapping[str, str], since: float, visible_scopes: frozenset[str] | None
) -> Iterator[LedgerRecord]:
    """Alerts that lasted at some time since; by when they were written, which is never before their end."""
    after = ""
    while True:
        page = tx.find(
            ALERT_KIND, tenant=tenant, terms=terms, scopes=visible_scopes, newest_first=True, after=after, limit=1000
        )
        recent = [record for record in page.records if record.at >= since or not record.body["until"]]
        yield from recent
        after = page.next
        if not after or (len(recent) < len(page.records) and "open" not in terms):
            return


def record_health_causes(ledger: Ledger, ctx: CallContext, node: str, amounts: Mapping[str, float]) -> None:
    """Write down what went wrong with a node."""
    cluster, _, name = node.partition("/")
    key = make_system_key("ailment", name, cluster)
    with ledger.project(ctx) as tx:
        previous = tx.key(key)
        parts = _read_parts(previous)
        for cause, amount in amounts.items():
            parts = health.add_cause(parts, cause, amount, ctx.now())
        tx.put(key, {"node": node, "parts": parts}, rev=previous.rev if previous else None)


def list_healths(tx: LedgerReader, nodes: Iterable[str], now: float) -> list[health.NodeHealth]:
    """How well these nodes are, the most ill first."""
    parts_by_node = {record.body["node"]: _read_parts(record) for record in iter_records(tx, "ailment", SYSTEM_TENANT)}
    healths = [health.judge_health(node, parts_by_node.get(node, {}), now) for node in nodes]
    return sorted(healths, key=lambda node_health: (node_health.score, node_health.node))


def record_blame(ledger: Ledger, ctx: CallContext, nodes: Iterable[str], cause: str) -> None:
    """An attempt ended for no fault of its own: its nodes share the suspicion."""
    node_names = sorted(set(nodes))
    for node in node_names:
        record_health_causes(ledger, ctx, node, {cause: 1 / len(node_names)})


def _read_parts(record: LedgerRecord | None) -> health.HealthParts:
    return {name: (value, at) for name, (value, at) in record.body["parts"].items()} if record else {}


def _to_alert(body: Mapping[str, Any], tenant: str) -> Alert:
    job = f"a job of {tenant}" if tenant and body["job"] else body["job"]
    names = ("kind", "node", "part", "since", "until", "text")
    return Alert(job=job, advice=ADVICE[body["kind"]], **{name: body[name] for name in names})
