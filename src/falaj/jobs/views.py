"""Jobs as people see them: a record as a view, a state in words, a fix as commands."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from falaj.core.ref import Ref
from falaj.jobs.records import ENDED_STATES, ON_HOLD, STARTING, STOPPING, WAITING, AttemptView, JobBody, JobView
from falaj.jobs.scheduler_facts import read_spec
from falaj.jobs.state_machine import describe_lost_work
from falaj.schedule.amount_text import BUDGET_UNITS, format_amount, format_budget_amount
from falaj.schedule.model import BANDS
from falaj.store.records import LedgerRecord


def to_job_view(record: LedgerRecord, name_job: Callable[[str], str] | None = None) -> JobView:
    """A job as its people see it; `name_job` says what to call another that it gave way to."""
    body, spec = record.body, read_spec(record)
    attempt = body["attempt"]
    return JobView(
        ref=record.ref.bare,
        state=body["state"],
        queue=body["queue"],
        band=BANDS[attempt["band"] if attempt else body["band"]],
        width=len(attempt["spots"]) if attempt else sum(role.count for role in spec.roles),
        progress=format_progress(body),
        note=describe_state(body),
        submitted_at=body["submitted"],
        author=record.author,
        run=Ref.parse(body["run"]),
        spec=spec,
        inputs={role: Ref.parse(ref) for role, ref in body["inputs"].items()},
        outputs={name: Ref.parse(ref) for name, ref in body["outputs"].items()},
        code=Ref.parse(body["code"]) if body["code"] else None,
        after=tuple(Ref.parse(ref) for ref in body["after"]),
        zones=tuple(body["zones"] or ()),
        attempts=tuple(to_attempt_view(attempt_body, name_job) for attempt_body in list_attempts(body)),
        step=body["step"],
        steps=body["steps"],
        ran_s=body["ran_s"],
        gpu_s=body["served"] // 1000 if any(role.gpus for role in spec.roles) else 0,
        evictions=body["evictions"],
        ended_at=body["ended"],
        saved_at=float(body["saved"]),
        person=body["who"]["id"],
    )


def show_held(view: JobView, reason: str) -> JobView:
    """A waiting job that may not start whatever is free, because of its submitter's standing or its queue."""
    if not reason or view.state != WAITING:
        return view
    return replace(view, state=ON_HOLD, note=reason, reason=ON_HOLD)


def list_attempts(body: JobBody) -> list[dict[str, Any]]:
    """Every attempt that is remembered, the one that lasts at the end."""
    current = body["attempt"]
    if current is None:
        return list(body["attempts"])
    nodes = sorted({row[0] for row in current["spots"]})
    return [
        *body["attempts"],
        {**current, "nodes": nodes, "width": len(current["spots"]), "ended": 0.0, "outcome": "", "code": 0},
    ]


def find_attempt(body: JobBody, number: int) -> dict[str, Any] | None:
    """One attempt, or the last."""
    all_attempts = list_attempts(body)
    return next(
        (attempt_body for attempt_body in reversed(all_attempts) if number in (0, attempt_body["number"])), None
    )


def to_attempt_view(attempt_body: dict[str, Any], name_job: Callable[[str], str] | None = None) -> AttemptView:
    """An attempt as people see it."""
    names = ("number", "id", "cluster", "width", "started", "ended", "code")
    outcome = attempt_body["outcome"]
    if name_job is not None and attempt_body.get("for"):
        outcome_word, _, cause = outcome.partition(": ")
        outcome = f"{outcome_word}: for {name_job(attempt_body['for'])}{cause and f'; {cause}'}"
    if "cause" in attempt_body:
        outcome += f"; {attempt_body['cause']}; {describe_lost_work(attempt_body)}"
    copied = {name: attempt_body[name] for name in names}
    return AttemptView(
        nodes=tuple(attempt_body["nodes"]), admitted=attempt_body.get("admitted", 0.0), outcome=outcome, **copied
    )


def format_progress(body: JobBody) -> str:
    """How far it is: 40/100, or the step where nobody said how many there are."""
    if not body["step"] and not body["steps"]:
        return ""
    return f"{body['step']}/{body['steps']}" if body["steps"] else f"step {body['step']}"


def describe_state(body: JobBody) -> str:
    """A state in words."""
    if body["note"] or body["state"] in ENDED_STATES:
        return str(body["note"])
    state_texts = {
        WAITING: "", ON_HOLD: f"waits for {', '.join(body['after'])}", STARTING: "its place is made ready",
        STOPPING: f"is being stopped: {((body['attempt'] or {}).get('stop') or {}).get('why', '')}",
    }  # fmt: skip
    return state_texts.get(body["state"], "")


def to_calls(ref: Ref, change: Iterable[tuple[str, str]]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """A fix as calls: desk, verb and arguments of each. What only time can change is none."""
    other_calls, own_changes, tries_again = list[tuple[str, dict[str, Any]]](), dict[str, Any](), False
    roles: dict[str, dict[str, str]] = {}
    for name, value in change:
        kind, _, rest = name.partition(":")
        change_kind, _, role = name.partition("@")
        if kind in _OTHER_CALLS:
            other_calls += _OTHER_CALLS[kind](rest, value)
        elif change_kind in _CHANGE_FLAGS and not role:
            own_changes[_CHANGE_FLAGS[change_kind][0]] = _CHANGE_FLAGS[change_kind][1](value)
        elif change_kind in _CHANGE_FLAGS or change_kind in _LOOSEN_FLAGS:
            text, convert = _CHANGE_FLAGS.get(change_kind) or _LOOSEN_FLAGS[change_kind]
            roles.setdefault(role, {"role": role} if role else {})[text] = f"{convert(value)}".removesuffix(".0")
        tries_again = tries_again or name == "not_before"
    calls = [("jobs.change", {"job": ref, **own_changes})] if own_changes or tries_again else []
    return (*calls, *(("jobs.loosen", {"job": ref, "more": demands}) for demands in roles.values()), *other_calls)


def to_commands(ref: Ref, change: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A fix as it is typed."""
    return tuple(_format_command(call, dict(arguments)) for call, arguments in to_calls(ref, change))


def _format_command(call: str, arguments: dict[str, Any]) -> str:
    subject = arguments.pop("job", "") or arguments.pop("name", "") or arguments.pop("node", "")
    demands = [("more", f"{key}={value}") for key, value in arguments.pop("more", {}).items()]
    flags = [
        f"--{name} {value:.12g}" if isinstance(value, float) else f"--{name} {value}"
        for name, value in (*arguments.items(), *demands)
    ]
    return " ".join(filter(None, ["falaj", *call.split("."), str(subject), *flags]))


def _make_quota_call(kind: str, rest: str, value: str) -> list[tuple[str, dict[str, Any]]]:
    queue, _, quota = rest.partition(":")
    return [("queues.change", {"name": queue, "more": {f"{kind}.{quota}": format_amount(quota, int(value))}})]


def _make_budget_call(rest: str, value: str) -> list[tuple[str, dict[str, Any]]]:
    queue, _, unit = rest.partition(":")
    changes = {f"budget.{BUDGET_UNITS[unit][0]}": f"+{format_budget_amount(unit, int(value))}"}
    return [("queues.change", {"name": queue, "more": changes})]


def _make_open_call(name: str, _nodes: str) -> list[tuple[str, dict[str, Any]]]:
    if "/" in name:
        return [("clusters.open", {"node": name})]
    return [("clusters.change", {"name": name, "more": {"state": "open"}})]


def _make_cancel_calls(_: str, jobs: str) -> list[tuple[str, dict[str, Any]]]:
    return [("jobs.cancel", {"job": job}) for job in jobs.split(",") if ":" in job]


_OTHER_CALLS: dict[str, Callable[[str, str], list[tuple[str, dict[str, Any]]]]] = {
    **{kind: partial(_make_quota_call, kind) for kind in ("limit", "guarantee", "lend")},
    "budget": _make_budget_call,
    "open": _make_open_call,
    "after": _make_cancel_calls,
    "hourly": lambda _, value: [("clusters.tune", {"hourly": float(format_budget_amount("money", int(value)))})],
}
"""What is changed for a job elsewhere than in its own request."""
_CHANGE_FLAGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "width": ("workers", int),
    "gpus": ("gpus", float),
    "milli": ("gpus", lambda value: int(value) / 1000),
    "band": ("band", lambda value: BANDS[int(value)]),
    "queue": ("queue", str),
    "cpu": ("cpus", lambda value: int(value) / 1000),
    "memory": ("memory", lambda value: format_amount("memory", int(value))),
}
"""What the scheduler calls a part of a request, and what `jobs.change` takes for it."""
_LOOSEN_FLAGS: dict[str, tuple[str, Callable[[str], str]]] = {
    "level": ("topology", lambda value: value or "any"),
    "models": ("gpu_model", lambda value: value or "any"),
    "device_mib": ("gpu_memory", lambda value: format_amount("memory", int(value))),
}
"""The same of `jobs.loosen`."""
