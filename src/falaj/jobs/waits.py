"""Why a job waits, told to who asks: names in place of ids, clusters that do not answer, and the fix as it is typed."""

from collections.abc import Mapping
from dataclasses import replace

from falaj.core.context import HOUSE, Context
from falaj.core.execute import NodeFacts
from falaj.core.ref import Ref
from falaj.fleet.clusters import Clusters, open_to
from falaj.fleet.elastic import KIND
from falaj.fleet.records import Cluster
from falaj.fleet.use import every
from falaj.jobs import views
from falaj.jobs.facts import kind_of, snapshot, spec_in
from falaj.jobs.life import hold_note, work_lost
from falaj.jobs.records import HELD, SUCCEEDED, WAITING, Body, Why
from falaj.jobs.standing import Standing, StandingReader
from falaj.schedule.model import NEVER, Reason, Snapshot
from falaj.schedule.words import spendable
from falaj.store.codec import from_plain
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

NO_NODES = "no cluster has told of its nodes yet"
_UNSEEN = "another team's job"
_FEW = 3
"""So many jobs are named that it could wait for."""


def why(ctx: Context, ledger: Ledger, clusters: Clusters, tx: Reader, record: Record) -> Why:
    """One reason, when it starts, and the smallest change that would start it now."""
    body, ref = record.body, record.ref.bare
    if (held_why := _why_held(tx, record)) is not None:
        return held_why
    if body["state"] != WAITING:
        return Why(ref, body["state"], body["state"], views.standing(body))
    facts = snapshot(ledger, clusters, tx, ctx.now())
    makers = _makers(clusters, tx, record)
    bought = clusters.bought_for(tx, body["id"]) if makers else ""  # what is made elsewhere is no reason
    silent = _silent(clusters, tx, record)
    if not facts.nodes:
        text = bought or _said(silent) or makers or NO_NODES
        start = "start the platform, or look: falaj clusters list", ()
        fix, change = _paid(clusters, tx, facts, bought and body["id"]) or start
        return Why(ref, WAITING, "capacity", text, fix, views.commands(ref, change), dict(change))
    from falaj.schedule.why import explain  # arrays: for those who ask why, and not for every list

    reason = explain(facts, body["id"], _closed(clusters, tx))
    if reason.code == "backing-off" and body["note"]:
        # The scheduler knows that it rests, and only the job whether it was refused, was lost, or failed.
        reason = replace(reason, text=f"{body['note']}; it waits a while first")
    elif reason.code == "impossible" and (text := bought or ("" if silent else makers)):
        reason = replace(reason, code="capacity", text=text, fix="", change=())
    elif bought:
        reason = replace(reason, text=f"{reason.text}; {bought}")
    elif silent and reason.code in ("impossible", "place"):
        look = tuple(f"falaj clusters check {name}" for name in silent)
        return Why(ref, WAITING, "place", _said(silent), "look what it answers", look)
    # Whoever would wait for others, or for nothing, may be helped by a node that is only too dear.
    if dict(reason.change).keys() <= {"after"} and (paid := _paid(clusters, tx, facts, bought and body["id"])):
        reason = replace(reason, fix=paid[0], change=paid[1])
    starts = 0.0 if reason.starts >= NEVER else float(reason.starts)
    reason = _named(ctx, tx, reason)
    text = f"{reason.text}{_evicted_for(ctx, tx, body)}"
    commands = views.commands(ref, reason.change)
    return Why(ref, WAITING, reason.code, text, reason.fix, commands, dict(reason.change), starts)


def _evicted_for(ctx: Context, tx: Reader, body: Body) -> str:
    """For whom its last attempt was evicted, why, and what was lost; empty where it ended otherwise."""
    last = body["attempts"][-1] if body["attempts"] else {}
    if "cause" not in last:
        return ""
    return f"; it was evicted for {name_of(ctx, tx, last['for'])}: {last['cause']}; {work_lost(last)}"


def _why_held(tx: Reader, record: Record) -> Why | None:
    """Why a job may not start whatever is free: a person holds it, it waits for jobs, its submitter or its queue."""
    body, ref = record.body, record.ref.bare
    if body["state"] == HELD and (hold := body.get("hold")):
        return Why(ref, HELD, HELD, hold_note(hold), "release it", (f"falaj jobs release {ref}",))
    if body["state"] == HELD:
        return Why(ref, HELD, HELD, _held(tx, record))
    standing = StandingReader(tx).find(record) if body["state"] == WAITING else Standing()
    if standing.queue:
        fix = "the people who run this installation release the queue"
        return Why(ref, HELD, HELD, standing.reason, fix, (f"falaj queues release {standing.queue}",))
    if standing.restricted_input:
        fix = "cancel it and submit it with a version that is not restricted: falaj catalog list shows the newest"
        return Why(ref, HELD, HELD, standing.reason, fix, (f"falaj jobs cancel {ref}",))
    if standing.reason:
        fix = "an administrator resumes the account or tenant, or gives the role or project back"
        return Why(ref, HELD, HELD, standing.reason, fix)
    return None


def _paid(clusters: Clusters, tx: Reader, facts: Snapshot, job: str) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """What bought nodes must be let cost an hour so that one is bought for a job, tried as the loop that buys would."""
    knobs, known = clusters.scale_knobs(tx), clusters.known(tx)
    if not job or not knobs.hourly:
        return None
    from falaj.simulator.elastic import Look  # arrays: as in `why`
    from falaj.simulator.elastic import Standing as NodeStanding

    made = [(one.key.project, one.body) for one in every(tx, KIND, HOUSE) if one.key.project in known]
    kinds = [kind_of(known[cluster], from_plain(NodeFacts, body["facts"])) for cluster, body in made]
    before = {body["kind"]: from_plain(NodeStanding, body["standing"]) for _, body in made}
    price = {kind.name: kind.node.price for kind in kinds}

    def look(hourly: int) -> tuple[str, int]:
        """The kind that it starts on then, and what all of them cost."""
        found = Look(facts, kinds, replace(knobs, hourly=hourly, gap_s=0)).review(before)
        cost = sum((one.wanted + len(one.gone)) * price[name] for name, one in found.standings.items())
        return found.basket.starts.get(job, ""), cost

    kind, most = look(0)
    sums = (look(knobs.hourly)[1] + price[kind], most) if kind else ()
    worth = next((one for one in sums if one > knobs.hourly and look(one)[0]), 0)
    said = f"let all bought nodes together cost {spendable('money', worth)} an hour"
    return (said, (("hourly", str(worth)),)) if worth else None


def _held(tx: Reader, record: Record) -> str:
    """Which jobs it waits for, and how they stand."""
    found = {name: tx.get(Ref.parse(name), record.key.tenant) for name in record.body["after"]}
    states = {name: one.body["state"] if one else "gone" for name, one in found.items()}
    return "waits for " + ", ".join(f"{name} ({state})" for name, state in states.items() if state != SUCCEEDED)


def _silent(clusters: Clusters, tx: Reader, record: Record) -> dict[str, str]:
    """The clusters it could run on that do not answer, or never told of nodes, and what went wrong."""
    known = clusters.known(tx)
    mine = [one.name for one in known.values() if _takes(one, record)]
    told = {cluster.name for cluster, _, _ in clusters.node_records(tx, known)}
    told |= {cluster.name for cluster, _ in clusters.imagined(tx, known)}
    troubles = clusters.troubles(tx)
    return {name: troubles.get(name, "") for name in mine if name in troubles or name not in told}


def _makers(clusters: Clusters, tx: Reader, record: Record) -> str:
    """Where nodes for it could be made, until the loop that buys them has looked at it; empty when nowhere."""
    names = sorted({cluster.name for cluster, _ in clusters.imagined(tx) if _takes(cluster, record)})
    return f"no node is there that could hold it; {', '.join(names)} can make some, if it pays" if names else ""


def _takes(cluster: Cluster, record: Record) -> bool:
    return open_to(cluster, record.key.tenant) and spec_in(record).cluster in ("", cluster.name)


def _said(silent: Mapping[str, str]) -> str:
    return "; ".join(
        f"{name} does not answer: {trouble}" if trouble else f"{name} has told of no nodes yet"
        for name, trouble in silent.items()
    )


def _closed(clusters: Clusters, tx: Reader) -> dict[str, list[str]]:
    """What somebody closed and can open again, with the nodes that take work then."""
    found: dict[str, list[str]] = {}
    for cluster, facts, _ in clusters.node_records(tx):
        name = f"{cluster.name}/{facts.name}"
        opened = _door(cluster, facts.name)
        if facts.ready and opened:
            found.setdefault(opened, []).append(name)
    return found


def _door(cluster: Cluster, node: str) -> str:
    """What keeps a node closed: itself, or its cluster; nothing, or both of them, is none."""
    drained, closed = node in cluster.drained, cluster.state != "open"
    return "" if drained == closed else f"{cluster.name}/{node}" if drained else cluster.name


def name_of(ctx: Context, tx: Reader, job_id: str) -> str:
    """What to call a job to whoever may see it, or not."""
    found = tx.find("job", tenant=ctx.tenant, terms={"id": job_id}, cells=ctx.cells("job"), limit=1).records
    return str(found[0].ref.bare) if found else _UNSEEN


def _named(ctx: Context, tx: Reader, reason: Reason) -> Reason:
    """Jobs by their names, where there are few and they may be seen."""
    ids = dict(reason.change).get("after", "").split(",")
    if ids == [""]:
        return reason
    names = [name for one in ids[:_FEW] if (name := name_of(ctx, tx, one)) != _UNSEEN]
    head = reason.fix.partition("wait until ")[0]
    if len(names) < len(ids):
        return replace(reason, fix=f"{head}wait until {len(ids)} {'job is' if len(ids) == 1 else 'jobs are'} over")
    them = "it ends, or cancel it" if len(names) == 1 else "they end, or cancel them"
    change = tuple((key, ",".join(names) if key == "after" else value) for key, value in reason.change)
    return replace(reason, fix=f"{head}wait for {' and '.join(names)} until {them}", change=change)
