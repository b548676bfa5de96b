"""Jobs as people see them: a record as a view, a state in words, a fix as commands."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from falaj.core.ref import Ref
from falaj.jobs.facts import spec_in
from falaj.jobs.life import work_lost
from falaj.jobs.records import HELD, OVER, STARTING, STOPPING, WAITING, Body, JobView, Tried
from falaj.schedule.model import BANDS
from falaj.schedule.words import BUDGETS, shown, spendable
from falaj.store.records import Record


def job(record: Record, named: Callable[[str], str] | None = None) -> JobView:
    """A job as its people see it; `named` says what to call another that it gave way to."""
    body, spec = record.body, spec_in(record)
    attempt = body["attempt"]
    return JobView(
        ref=record.ref.bare,
        state=body["state"],
        queue=body["queue"],
        band=BANDS[attempt["band"] if attempt else body["band"]],
        width=len(attempt["spots"]) if attempt else sum(role.count for role in spec.roles),
        progress=progress(body),
        note=standing(body),
        submitted_at=body["submitted"],
        author=record.author,
        run=Ref.parse(body["run"]),
        spec=spec,
        inputs={role: Ref.parse(ref) for role, ref in body["inputs"].items()},
        outputs={name: Ref.parse(ref) for name, ref in body["outputs"].items()},
        code=Ref.parse(body["code"]) if body["code"] else None,
        after=tuple(Ref.parse(ref) for ref in body["after"]),
        zones=tuple(body["zones"] or ()),
        attempts=tuple(tried(one, named) for one in attempts(body)),
        step=body["step"],
        steps=body["steps"],
        ran_s=body["ran_s"],
        gpu_s=body["served"] // 1000 if any(role.gpus for role in spec.roles) else 0,
        evictions=body["evictions"],
        ended_at=body["ended"],
        saved_at=float(body["saved"]),
        person=body["who"]["id"],
    )


def held_back(view: JobView, reason: str) -> JobView:
    """A waiting job that may not start whatever is free, because of its submitter's standing or its queue."""
    if not reason or view.state != WAITING:
        return view
    return replace(view, state=HELD, note=reason, reason=HELD)


def attempts(body: Body) -> list[dict[str, Any]]:
    """Every attempt that is remembered, the one that lasts at the end."""
    now = body["attempt"]
    if now is None:
        return list(body["attempts"])
    nodes = sorted({row[0] for row in now["spots"]})
    return [
        *body["attempts"],
        {**now, "nodes": nodes, "width": len(now["spots"]), "ended": 0.0, "outcome": "", "code": 0},
    ]


def attempt_of(body: Body, number: int) -> dict[str, Any] | None:
    """One attempt, or the last."""
    known = attempts(body)
    return next((one for one in reversed(known) if number in (0, one["number"])), None)


def tried(one: dict[str, Any], named: Callable[[str], str] | None = None) -> Tried:
    """An attempt as people see it."""
    names = ("number", "id", "cluster", "width", "started", "ended", "code")
    outcome = one["outcome"]
    if named is not None and one.get("for"):
        word, _, why = outcome.partition(": ")
        outcome = f"{word}: for {named(one['for'])}{why and f'; {why}'}"
    if "cause" in one:
        outcome += f"; {one['cause']}; {work_lost(one)}"
    same = {name: one[name] for name in names}
    return Tried(nodes=tuple(one["nodes"]), admitted=one.get("admitted", 0.0), outcome=outcome, **same)


def progress(body: Body) -> str:
    """How far it is: 40/100, or the step where nobody said how many there are."""
    if not body["step"] and not body["steps"]:
        return ""
    return f"{body['step']}/{body['steps']}" if body["steps"] else f"step {body['step']}"


def standing(body: Body) -> str:
    """A state in words."""
    if body["note"] or body["state"] in OVER:
        return str(body["note"])
    words = {
        WAITING: "", HELD: f"waits for {', '.join(body['after'])}", STARTING: "its place is made ready",
        STOPPING: f"is being stopped: {((body['attempt'] or {}).get('stop') or {}).get('why', '')}",
    }  # fmt: skip
    return words.get(body["state"], "")


def fixes(ref: Ref, change: Iterable[tuple[str, str]]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """A fix as calls: desk, verb and arguments of each. What only time can change is none."""
    found, mine, again = list[tuple[str, dict[str, Any]]](), dict[str, Any](), False
    roles: dict[str, dict[str, str]] = {}
    for name, value in change:
        kind, _, rest = name.partition(":")
        word, _, role = name.partition("@")
        if kind in _ELSEWHERE:
            found += _ELSEWHERE[kind](rest, value)
        elif word in _WORDS and not role:
            mine[_WORDS[word][0]] = _WORDS[word][1](value)
        elif word in _WORDS or word in _DEMANDS:
            text, worth = _WORDS.get(word) or _DEMANDS[word]
            roles.setdefault(role, {"role": role} if role else {})[text] = f"{worth(value)}".removesuffix(".0")
        again = again or name == "not_before"
    calls = [("jobs.change", {"job": ref, **mine})] if mine or again else []
    return (*calls, *(("jobs.loosen", {"job": ref, "more": more}) for more in roles.values()), *found)


def commands(ref: Ref, change: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A fix as it is typed."""
    return tuple(_typed(call, dict(given)) for call, given in fixes(ref, change))


def _typed(call: str, given: dict[str, Any]) -> str:
    first = given.pop("job", "") or given.pop("name", "") or given.pop("node", "")
    more = [("more", f"{key}={value}") for key, value in given.pop("more", {}).items()]
    flags = [
        f"--{name} {value:.12g}" if isinstance(value, float) else f"--{name} {value}"
        for name, value in (*given.items(), *more)
    ]
    return " ".join(filter(None, ["falaj", *call.split("."), str(first), *flags]))


def _quota(kind: str, rest: str, value: str) -> list[tuple[str, dict[str, Any]]]:
    queue, _, quota = rest.partition(":")
    return [("queues.change", {"name": queue, "more": {f"{kind}.{quota}": shown(quota, int(value))}})]


def _budget(rest: str, value: str) -> list[tuple[str, dict[str, Any]]]:
    queue, _, unit = rest.partition(":")
    more = {f"budget.{BUDGETS[unit][0]}": f"+{spendable(unit, int(value))}"}
    return [("queues.change", {"name": queue, "more": more})]


def _open(name: str, _nodes: str) -> list[tuple[str, dict[str, Any]]]:
    if "/" in name:
        return [("clusters.open", {"node": name})]
    return [("clusters.change", {"name": name, "more": {"state": "open"}})]


def _cancel(_: str, jobs: str) -> list[tuple[str, dict[str, Any]]]:
    return [("jobs.cancel", {"job": job}) for job in jobs.split(",") if ":" in job]


_ELSEWHERE: dict[str, Callable[[str, str], list[tuple[str, dict[str, Any]]]]] = {
    **{kind: partial(_quota, kind) for kind in ("limit", "guarantee", "lend")},
    "budget": _budget,
    "open": _open,
    "after": _cancel,
    "hourly": lambda _, value: [("clusters.tune", {"hourly": float(spendable("money", int(value)))})],
}
"""What is changed for a job elsewhere than in its own request."""
_WORDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "width": ("workers", int),
    "gpus": ("gpus", float),
    "milli": ("gpus", lambda value: int(value) / 1000),
    "band": ("band", lambda value: BANDS[int(value)]),
    "queue": ("queue", str),
    "cpu": ("cpus", lambda value: int(value) / 1000),
    "memory": ("memory", lambda value: shown("memory", int(value))),
}
"""What the scheduler calls a part of a request, and what `jobs.change` takes for it."""
_DEMANDS: dict[str, tuple[str, Callable[[str], str]]] = {
    "level": ("topology", lambda value: value or "any"),
    "models": ("gpu_model", lambda value: value or "any"),
    "device_mib": ("gpu_memory", lambda value: shown("memory", int(value))),
}
"""The same of `jobs.loosen`."""
