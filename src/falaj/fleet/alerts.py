"""Alerts as records: opened once, closed once, each with an event; and what went wrong with nodes, for their health."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from falaj.core.context import HOUSE, Context
from falaj.core.data import dataclass
from falaj.core.event import new_id
from falaj.core.ports import Key
from falaj.fleet import health
from falaj.fleet.kinds import ADVICE, IDLE, Sign
from falaj.fleet.use import every, house_key
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record

KIND = "alert"
OPEN: Mapping[str, str] = {"open": "1"}


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
class About:
    """What an alert is about: whose figures showed it, on which node, and which job's business it is, if one's."""

    of: str
    node: str
    job: Record | None = None

    @property
    def tenant(self) -> str:
        """Whose alert it is."""
        return self.job.key.tenant if self.job else HOUSE

    def mark(self, kind: str, part: str) -> str:
        """What makes two alerts the same."""
        return f"{kind}|{part}|{self.of}"


def say(tx: Writer, about: About, sign: Sign, now: float) -> None:
    """Open an alert, or close it; the same again is nothing new."""
    mark = about.mark(sign.kind, sign.part)
    known = tx.find(KIND, tenant=about.tenant, terms={"mark": mark, **OPEN}).records
    if sign.opens and not known:
        _open(tx, about, sign, now)
    for record in known if not sign.opens else ():
        end(tx, record, sign.since)


def _open(tx: Writer, about: About, sign: Sign, now: float) -> None:
    job = about.job
    job_name = str(job.ref.bare) if job else ""
    body = {
        "kind": sign.kind, "part": sign.part, "of": about.of, "node": about.node, "job": job_name,
        "id": job.body["id"] if job else "", "attempt": job.body["attempt"]["id"] if job else "",
        "since": sign.since, "opened": now, "until": 0.0, "text": sign.text,
    }  # fmt: skip
    key = Key(about.tenant, KIND, job.key.project if job else HOUSE, f"{sign.kind}-{new_id()}")
    label, zone = (job.label, job.zone) if job else (None, "")
    terms = {"mark": about.mark(sign.kind, sign.part), "kind": sign.kind, **OPEN}
    record = tx.put(key, body, label=label, zone=zone, terms=terms)
    tx.emit("clusters.alert", record.ref, (), tenant=about.tenant, kind=sign.kind, node=about.node, job=job_name)


def end(tx: Writer, old: Record, until: float) -> None:
    """Close an alert."""
    terms = {name: value for name, value in old.terms.items() if name != "open"}
    record = tx.put(old.key, {**old.body, "until": until}, rev=old.rev, terms=terms)
    kind, node, job = (str(old.body[name]) for name in ("kind", "node", "job"))
    tx.emit("clusters.calm", record.ref, tenant=old.key.tenant, kind=kind, node=node, job=job)


def opened(tx: Reader, tenants: Iterable[str]) -> Iterator[Record]:
    """Every alert that lasts."""
    for tenant in tenants:
        yield from every(tx, KIND, tenant, OPEN)


def listed(ctx: Context, tx: Reader, tenants: Iterable[str], since: float, *, lasting: bool) -> list[Alert]:
    """Alerts that a caller may see, newest first. Of others' jobs the house sees that there is one, and whose."""
    found: list[Alert] = []
    for tenant in tenants:
        mine = tenant == ctx.tenant
        cells = ctx.cells(KIND) if mine else None
        records = _recent(tx, tenant, OPEN if lasting else {}, since, cells)
        found += [_alert(record.body, "" if mine else tenant) for record in records]
    return sorted(found, key=lambda one: -one.since)


def idle_seconds(tx: Reader, tenant: str, since: float, until: float) -> dict[str, float]:
    """GPU-seconds that jobs held idle in a window, by the id of the job."""
    found: dict[str, float] = {}
    for record in _recent(tx, tenant, {"kind": IDLE}, since, None):
        body = record.body
        span = min(until, body["until"] or until) - max(since, body["since"])
        if span > 0 and body["id"]:
            found[body["id"]] = found.get(body["id"], 0.0) + span
    return found


def _recent(
    tx: Reader, tenant: str, terms: Mapping[str, str], since: float, cells: frozenset[str] | None
) -> Iterator[Record]:
    """Alerts that lasted at some time since; by when they were written, which is never before their end."""
    after = ""
    while True:
        page = tx.find(KIND, tenant=tenant, terms=terms, cells=cells, newest=True, after=after, limit=1000)
        fresh = [record for record in page.records if record.at >= since or not record.body["until"]]
        yield from fresh
        after = page.next
        if not after or (len(fresh) < len(page.records) and "open" not in terms):
            return


def ail(ledger: Ledger, ctx: Context, node: str, amounts: Mapping[str, float]) -> None:
    """Write down what went wrong with a node."""
    cluster, _, name = node.partition("/")
    key = house_key("ailment", name, cluster)
    with ledger.project(ctx) as tx:
        old = tx.key(key)
        parts = _parts(old)
        for what, amount in amounts.items():
            parts = health.more(parts, what, amount, ctx.now())
        tx.put(key, {"node": node, "parts": parts}, rev=old.rev if old else None)


def healths(tx: Reader, nodes: Iterable[str], now: float) -> list[health.NodeHealth]:
    """How well these nodes are, the most ill first."""
    known = {record.body["node"]: _parts(record) for record in every(tx, "ailment", HOUSE)}
    found = [health.judged(node, known.get(node, {}), now) for node in nodes]
    return sorted(found, key=lambda one: (one.score, one.node))


def blame(ledger: Ledger, ctx: Context, nodes: Iterable[str], word: str) -> None:
    """An attempt ended for no fault of its own: its nodes share the suspicion."""
    known = sorted(set(nodes))
    for node in known:
        ail(ledger, ctx, node, {word: 1 / len(known)})


def _parts(record: Record | None) -> health.Parts:
    return {name: (value, at) for name, (value, at) in record.body["parts"].items()} if record else {}


def _alert(body: Mapping[str, Any], tenant: str) -> Alert:
    job = f"a job of {tenant}" if tenant and body["job"] else body["job"]
    names = ("kind", "node", "part", "since", "until", "text")
    return Alert(job=job, advice=ADVICE[body["kind"]], **{name: body[name] for name in names})
