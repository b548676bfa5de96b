"""How items of steps end: what their jobs made and said, and what people or events decided at their gates."""

from falaj.core.label import Label, join_all
from falaj.core.ref import Ref
from falaj.flows import cache, turns
from falaj.flows.asking import APPROVE, Case
from falaj.flows.hearing import result_key
from falaj.flows.plans import APPROVAL
from falaj.flows.records import CANCELLED, FAILED, FUNCTION, GATE, RUNNING, SUCCEEDED, Body, StepPlan
from falaj.govern.approvals import approval_ref, current_standing, find_approval
from falaj.jobs import records as jobs
from falaj.store.codec import to_json
from falaj.store.ledger import Ledger
from falaj.store.records import Record

SAID = "said"
"""The mark of an item whose note has words of its own code in it: they stay in the run, and go into no event."""


def taken_in(ledger: Ledger, case: Case) -> Label:
    """Take what is over into the body of the run; the label that the run carries with what its steps returned."""
    labels = [case.turn.label]
    for step in case.plan.steps:
        one = case.body["steps"][step.name]
        if one["state"] != RUNNING:
            continue
        for at, item in enumerate(one["items"]):
            if item["state"] != RUNNING:
                continue
            if step.kind == GATE:
                one["items"][at] = gate_of(ledger, case, step, item)
                continue
            job = case.tx.get(Ref.parse(item["job"]))
            if job is None or job.body["state"] in jobs.OVER:
                one["items"][at] = _concluded(case, step, item, job)
                labels += [job.label] if job is not None else []
        if len(to_json([item["value"] for item in one["items"]])) > turns.MOST_RESULTS:
            _drop(one)
    return join_all(labels)


def gate_of(ledger: Ledger, case: Case, step: StepPlan, item: Body) -> Body:
    """A gate as it stands now."""
    late = bool(step.timeout_s) and case.now > item["at"] + step.timeout_s
    if step.entry == APPROVAL:
        return _approved(case, item)
    takes = {name: turns.resolved(source, case.body, case.plan) for name, source in step.takes.items()}
    subject = Ref.parse(takes["subject"])
    where = {"verb": str(takes["verb"]), "kind": subject.kind, "project": subject.project, "name": subject.name}
    facts = ledger.tail(item["mark"], tenant=case.turn.key.tenant, limit=1, **where)
    if facts:
        value = {"subject": str(facts[0].event.subject), "id": facts[0].event.id}
        return {**item, "state": SUCCEEDED, "value": value, "end": case.now, "note": ""}
    if late:
        note = f"{takes['verb']} of {subject} did not happen within {step.timeout_s} s; falaj flows retry waits again"
        return {**item, "state": FAILED, "note": note, "end": case.now}
    return item


def _approved(case: Case, item: Body) -> Body:
    ref = approval_ref(APPROVE, item["mark"])
    approval = find_approval(case.tx, APPROVE, item["mark"], tenant=case.turn.key.tenant)
    stand = current_standing(approval, case.now) if approval is not None else None
    if stand is None or stand.state in ("refused", "expired", "lapsed"):
        why = stand.why if stand else "the question is gone"
        return {**item, "state": FAILED, "note": f"{ref}: {why}; falaj flows retry asks again", "end": case.now}
    if stand.state != "granted":
        return item
    return {**item, "state": SUCCEEDED, "value": {"approval": str(ref)}, "end": case.now, "note": ""}


def _concluded(case: Case, step: StepPlan, item: Body, job: Record | None) -> Body:
    """An item whose job is over."""
    item = {**item, "end": job.body["ended"] if job else case.now, "mark": ""}
    if job is None:
        return {**item, "state": FAILED, "note": "its job is gone; falaj flows retry asks for it again"}
    said = case.tx.key(result_key(job))
    if said is not None:
        case.tx.delete(said.key, said.rev)
    heard = said.body if said is not None else {"value": None, "error": ""}
    state, note = job.body["state"], job.body["note"]
    if state == jobs.CANCELLED:
        return {**item, "state": CANCELLED, "note": note or "its job was cancelled"}
    if state != jobs.SUCCEEDED:
        why = f"{heard['error']} [{note}]" if heard["error"] and note else heard["error"] or note
        return _failed(item, f"{why}; falaj jobs logs {job.ref.bare}", SAID if heard["error"] else "")
    if step.kind == FUNCTION and said is None:
        return _failed(item, f"it ended without saying what it gave; falaj jobs logs {job.ref.bare}")
    if heard["error"]:
        return _failed(item, heard["error"])
    made = {name: job.body["outputs"][name] for name in step.outputs}
    item = {**item, "state": SUCCEEDED, "outputs": made, "value": heard["value"], "note": ""}
    if item["key"]:
        memo = cache.memo_key(case.turn.key.tenant, case.turn.key.project, item["key"])
        known = {"turn": str(case.turn.ref.bare), "step": step.name, "outputs": made, "value": heard["value"]}
        cache.remember(case.tx, memo, known, job.label)
    return item


def _failed(item: Body, note: str, mark: str = "") -> Body:
    return {**item, "state": FAILED, "note": note[: turns.MOST_NOTE], "mark": mark}


def _drop(one: Body) -> None:
    """Too much to keep in a run: the items whose values are longest say so, and write files the next time."""
    for item in one["items"]:
        if item["state"] == SUCCEEDED and item["value"] is not None:
            note = f"what all items return has over {turns.MOST_RESULTS} bytes: write files to step.output(…)"
            item |= {"state": FAILED, "value": None, "note": note}
