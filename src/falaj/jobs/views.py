"""Jobs as people see them: a record as a view, a state in words, a fix as commands."""

from collections.abc import Iterable
from typing import Any

from falaj.core.ref import Ref
from falaj.fleet.amounts import shown
from falaj.jobs.facts import spec_in
from falaj.jobs.records import HELD, OVER, STARTING, STOPPING, WAITING, Body, JobView, Tried
from falaj.schedule.model import BANDS
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
    return Tried(nodes=tuple(one["nodes"]), **{name: one[name] for name in names})


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


def commands(ref: Ref, change: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A fix as it is typed."""
    flags = {"width": "workers", "gpus": "gpus", "band": "band", "queue": "queue", "cpu": "cpus", "memory": "memory"}
    found, mine = [], []
    for name, value in change:
        kind, _, rest = name.partition(":")
        if kind in ("limit", "guarantee", "lend"):
            queue, _, quota = rest.partition(":")
            found.append(f"falaj queues change {queue} --more {kind}.{quota}={shown(quota, int(value))}")
        elif name in flags:
            text = BANDS[int(value)] if name == "band" and value.isdigit() else value
            mine.append(f"--{flags[name]} {text}")
    return (*([f"falaj jobs change {ref} {' '.join(mine)}"] if mine else []), *found)
