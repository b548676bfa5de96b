"""How items of steps end: what their jobs made and said, and what people or events decided at their gates."""

from falaj.core.label import Label, join_labels
from falaj.core.ref import Ref
from falaj.flows import flow_runs, step_cache
from falaj.flows.flow_plans import GATE_APPROVAL
from falaj.flows.records import CANCELLED, FAILED, RUNNING, STEP_FUNCTION, STEP_GATE, SUCCEEDED, RecordBody, StepPlan
from falaj.flows.result_collector import make_result_key
from falaj.flows.step_requests import APPROVAL_ACTION, RunContext
from falaj.govern.approvals import compute_current_standing, find_approval, make_approval_ref
from falaj.jobs import records as jobs
from falaj.store.codec import to_json
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

CODE_TEXT_MARK = "said"
"""The mark of an item whose note has words of its own code in it: they stay in the run, and go into no event."""


def collect_results(ledger: Ledger, run_context: RunContext) -> Label:
    """Take what is over into the body of the run; the label that the run carries with what its steps returned."""
    labels = [run_context.turn.label]
    for step in run_context.plan.steps:
        step_body = run_context.body["steps"][step.name]
        if step_body["state"] != RUNNING:
            continue
        for item_number, item in enumerate(step_body["items"]):
            if item["state"] != RUNNING:
                continue
            if step.kind == STEP_GATE:
                step_body["items"][item_number] = check_gate(ledger, run_context, step, item)
                continue
            job = run_context.tx.get(Ref.parse(item["job"]))
            if job is None or job.body["state"] in jobs.ENDED_STATES:
                step_body["items"][item_number] = _conclude_item(run_context, step, item, job)
                labels += [job.label] if job is not None else []
        if len(to_json([item["value"] for item in step_body["items"]])) > flow_runs.MAX_RESULT_BYTES:
            _drop_results(step_body)
    return join_labels(labels)


def check_gate(ledger: Ledger, run_context: RunContext, step: StepPlan, item: RecordBody) -> RecordBody:
    """A gate as it stands now."""
    is_late = bool(step.timeout_s) and run_context.now > item["at"] + step.timeout_s
    if step.entry == GATE_APPROVAL:
        return _check_approval(run_context, item)
    takes = {
        name: flow_runs.resolve_source(source, run_context.body, run_context.plan)
        for name, source in step.takes.items()
    }
    subject = Ref.parse(takes["subject"])
    event_search = {"verb": str(takes["verb"]), "kind": subject.kind, "project": subject.project, "name": subject.name}
    logged_events = ledger.tail(item["mark"], tenant=run_context.turn.key.tenant, limit=1, **event_search)
    if logged_events:
        value = {"subject": str(logged_events[0].event.subject), "id": logged_events[0].event.id}
        return {**item, "state": SUCCEEDED, "value": value, "end": run_context.now, "note": ""}
    if is_late:
        note = f"{takes['verb']} of {subject} did not happen within {step.timeout_s} s; falaj flows retry waits again"
        return {**item, "state": FAILED, "note": note, "end": run_context.now}
    return item


def _check_approval(run_context: RunContext, item: RecordBody) -> RecordBody:
    ref = make_approval_ref(APPROVAL_ACTION, item["mark"])
    approval = find_approval(run_context.tx, APPROVAL_ACTION, item["mark"], tenant=run_context.turn.key.tenant)
    approval_standing = compute_current_standing(approval, run_context.now) if approval is not None else None
    if approval_standing is None or approval_standing.state in ("refused", "expired", "lapsed"):
        reason = approval_standing.why if approval_standing else "the question is gone"
        return {
            **item,
            "state": FAILED,
            "note": f"{ref}: {reason}; falaj flows retry asks again",
            "end": run_context.now,
        }
    if approval_standing.state != "granted":
        return item
    return {**item, "state": SUCCEEDED, "value": {"approval": str(ref)}, "end": run_context.now, "note": ""}


def _conclude_item(run_context: RunContext, step: StepPlan, item: RecordBody, job: LedgerRecord | None) -> RecordBody:
    """An item whose job is over."""
    item = {**item, "end": job.body["ended"] if job else run_context.now, "mark": ""}
    if job is None:
        return {**item, "state": FAILED, "note": "its job is gone; falaj flows retry asks for it again"}
    result_record = run_context.tx.key(make_result_key(job))
    if result_record is not None:
        run_context.tx.delete(result_record.key, result_record.rev)
    step_result = result_record.body if result_record is not None else {"value": None, "error": ""}
    state, note = job.body["state"], job.body["note"]
    if state == jobs.CANCELLED:
        return {**item, "state": CANCELLED, "note": note or "its job was cancelled"}
    if state != jobs.SUCCEEDED:
        reason = f"{step_result['error']} [{note}]" if step_result["error"] and note else step_result["error"] or note
        return _fail_item(
            item, f"{reason}; falaj jobs logs {job.ref.bare}", CODE_TEXT_MARK if step_result["error"] else ""
        )
    if step.kind == STEP_FUNCTION and result_record is None:
        return _fail_item(item, f"it ended without saying what it gave; falaj jobs logs {job.ref.bare}")
    if step_result["error"]:
        return _fail_item(item, step_result["error"])
    output_refs = {name: job.body["outputs"][name] for name in step.outputs}
    item = {**item, "state": SUCCEEDED, "outputs": output_refs, "value": step_result["value"], "note": ""}
    if item["key"]:
        memo_ref = step_cache.make_memo_key(run_context.turn.key.tenant, run_context.turn.key.project, item["key"])
        memo_body = {
            "turn": str(run_context.turn.ref.bare),
            "step": step.name,
            "outputs": output_refs,
            "value": step_result["value"],
        }
        step_cache.store_result(run_context.tx, memo_ref, memo_body, job.label)
    return item


def _fail_item(item: RecordBody, note: str, mark: str = "") -> RecordBody:
    return {**item, "state": FAILED, "note": note[: flow_runs.MAX_NOTE_CHARS], "mark": mark}


def _drop_results(step_body: RecordBody) -> None:
    """Too much to keep in a run: the items whose values are longest say so, and write files the next time."""
    for item in step_body["items"]:
        if item["state"] == SUCCEEDED and item["value"] is not None:
            note = f"what all items return has over {flow_runs.MAX_RESULT_BYTES} bytes: write files to step.output(…)"
            item |= {"state": FAILED, "value": None, "note": note}
