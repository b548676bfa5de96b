"""Jobs as people see them: a record as a view, a state in words, a fix as commands."""

from collections.abc import Callable, Iterable
from typing import Any

from falaj.core.ref import Ref
from falaj.jobs.facts import spec_in
from falaj.jobs.records import HELD, OVER, STARTING, STOPPING, WAITING, Body, JobView, Tried
from falaj.schedule.model import BANDS
from falaj.schedule.words import shown
from falaj.store.records import Record


def job(record: Record) -> JobView:
    """A job as its people see it."""
    body, spec = record.body, spec_in(record)
    attempt = body["attempt"]
    width = sum(row[1] == 0 for row in attempt["spots"]) if attempt else 0
    return JobView(
        ref=record.ref.bare,
        state=body["state"],
        queue=body["queue"],
        band=BANDS[attempt["band"] if attempt else body["band"]],
        width=width or spec.roles[0].count,
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
        attempts=tuple(tried(one) for one in attempts(body)),
        step=body["step"],
        steps=body["steps"],
        ran_s=body["ran_s"],
        gpu_s=body["served"] // 1000 if any(role.gpus for role in spec.roles) else 0,
        evictions=body["evictions"],
        ended_at=body["ended"],
        saved_at=float(body["saved"]),
        person=body["who"]["id"],
    )


def attempts(body: Body) -> list[dict[str, Any]]:
    """Every attempt that is remembered, the one that lasts at the end."""
    now = body["attempt"]
    if now is None:
        return list(body["attempts"])
    nodes = sorted({row[0] for row in now["spots"]})
    width = sum(row[1] == 0 for row in now["spots"])
    return [*body["attempts"], {**now, "nodes": nodes, "width": width, "ended": 0.0, "outcome": "", "code": 0}]


def attempt_of(body: Body, number: int) -> dict[str, Any] | None:
    """One attempt, or the last."""
    known = attempts(body)
    return next((one for one in reversed(known) if number in (0, one["number"])), None)


def tried(one: dict[str, Any]) -> Tried:
    """An attempt as people see it."""
    names = ("number", "id", "cluster", "width", "started", "ended", "outcome", "code")
    return Tried(nodes=tuple(one["nodes"]), admitted=one.get("admitted", 0.0), **{name: one[name] for name in names})


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
        WAITING: "", HELD: "waits for other jobs", STARTING: "its files are brought to where it runs",
        STOPPING: f"is being stopped: {((body['attempt'] or {}).get('stop') or {}).get('why', '')}",
    }  # fmt: skip
    return words.get(body["state"], "")


def fixes(ref: Ref, change: Iterable[tuple[str, str]]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """A fix as calls: desk, verb and arguments of each. What only time or another request can change is none."""
    found, mine, again = list[tuple[str, dict[str, Any]]](), dict[str, Any](), False
    for name, value in change:
        kind, _, rest = name.partition(":")
        if kind in ("limit", "guarantee", "lend"):
            queue, _, quota = rest.partition(":")
            more = {f"{kind}.{quota}": shown(quota, int(value))}
            found.append(("queues.change", {"name": queue, "more": more}))
        elif name in _WORDS:
            word, worth = _WORDS[name]
            mine[word] = worth(value)
        again = again or name == "not_before"
    return (*([("jobs.change", {"job": ref, **mine})] if mine or again else []), *found)


def commands(ref: Ref, change: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A fix as it is typed."""
    return tuple(_typed(call, dict(given)) for call, given in fixes(ref, change))


def _typed(call: str, given: dict[str, Any]) -> str:
    first = given.pop("job" if call == "jobs.change" else "name")
    words = given.items() if call == "jobs.change" else [("more", f"{k}={v}") for k, v in given["more"].items()]
    flags = [f"--{name} {value:g}" if isinstance(value, float) else f"--{name} {value}" for name, value in words]
    return " ".join(["falaj", *call.split("."), str(first), *flags])


_WORDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "width": ("workers", int),
    "gpus": ("gpus", float),
    "band": ("band", lambda value: BANDS[int(value)]),
    "queue": ("queue", str),
    "cpu": ("cpus", lambda value: int(value) / 1000),
    "memory": ("memory", lambda value: shown("memory", int(value))),
}
"""What the scheduler calls a part of a request, and what `jobs.change` takes for it."""
