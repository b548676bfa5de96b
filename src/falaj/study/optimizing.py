"""Make a model smaller and faster, beside the caller or in a job, and publish what was chosen as its child."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from falaj.core.errand import Here, errand
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.event import new_id
from falaj.core.ref import Ref
from falaj.study.following import Broken, Lines, said_by_child, said_by_job

MODULE = "falaj.optimize"
_OURS = ('{"step"', '{"tried"', '{"ended"', '{"error"')
_NOTHING_CHOSEN = 3
_JOB = {"cpus": 1, "memory": "8GiB", "limit": "8h"}
_NUMBERS = {"seed": int, "threads": int, "epochs": int, "rounds": int, "share": float, "width": float}
HOW = ("code", "evaluate", "methods", "student", "out", "gpus", "cluster", "cpus", "memory", *_NUMBERS)


@dataclass(frozen=True, slots=True)
class Optimized:
    """What was tried, what was chosen, and the version that was made of it."""

    TEXT: ClassVar[str] = "lines"

    model: Ref
    """The version that it began with."""
    ref: Ref | None
    """The child; None when nothing within the bound was faster."""
    chosen: str
    measure: str
    max_loss: float
    tried: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """One optimisation as it was asked for, with everything named."""

    model: Ref
    out: Ref
    plan: Mapping[str, Any]
    inputs: Mapping[str, Ref]
    """data and evaluate."""
    code: Ref | None
    folder: str
    """Of code that is not published."""
    job: Mapping[str, Any]


@errand
def optimize(
    here: Here,
    model: Annotated[Ref, "which model; the newest version when none is given"],
    aim: Annotated[str, "what for: cpu (this machine's), any-cpu (those without VNNI, too) or cuda"] = "cpu",
    max_loss: Annotated[str, "how much quality may be lost: half a point, or of an error half a percent"] = "0.5%",
    data: Annotated[Ref | None, "rows to learn and calibrate from; a fifth is held out to judge by"] = None,
    target: Annotated[str, "the column that holds the right answer"] = "",
    how: Annotated[
        dict[str, str] | None,
        "code=FOLDER or code:… (of a torch model), evaluate=dataset:… (rows to judge by), methods=fuse,int8-dynamic,"
        "int8-static,fp16,bf16,sparse,prune,distil, student=module:name, out=model:… (another name), seed, threads, "
        "epochs, rounds, share (pruned), width (of the student); gpus, cluster, cpus, memory: in a job. "
        "`falaj optimize` takes each as a flag",
    ] = None,
) -> Optimized:
    """Make a model smaller and faster: try every method, measure each here, publish the fastest within the bound.

    The model is exported to ONNX and its answers are compared with its own; then fusion, 8 bits, 16 bits, pruning and
    a distilled student are tried, and judged on rows that were not learnt from. What loses more than the bound is shown
    and never published. The chosen one becomes the next version, with the model and the data as its inputs, and the
    evidence in optimize.json.

    Example:
        falaj optimize model:fraud/scorer@v7 --for cpu --max-loss 0.5% --data dataset:fraud/tx --target label
        falaj catalog optimize model:fraud/scorer --data dataset:fraud/tx --how code=./src --how methods=distil
    """
    asked = _asked(here, model, {"aim": aim, "max_loss": fraction(max_loss), "target": target}, data, how or {})
    run = _in_job if asked.job else _beside
    return run(here, asked)


def fraction(text: str) -> float:
    """0.5% or 0.005."""
    try:
        found = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise Invalid(f"{text[:40]!r} is no share", "for example 0.5%")
    return found


def _asked(here: Here, model: Ref, said: Mapping[str, Any], data: Ref | None, how: Mapping[str, str]) -> _Asked:
    if unknown := sorted(set(how) - set(HOW)):
        raise Invalid(f"there is no {unknown[0][:40]!r}", f"there are: {', '.join(HOW)}")
    if model.kind != "model":
        raise Invalid(f"{model} is no model", "for example model:fraud/scorer", model)
    version = here.catalog.show(model)
    plan: dict[str, Any] = {**said, **{name: _number(name, how[name]) for name in _NUMBERS if name in how}}
    plan |= {"student": how.get("student", "")}
    plan |= {"methods": [one for one in how.get("methods", "").replace("+", ",").split(",") if one]}
    given = {"data": data, "evaluate": Ref.parse(how["evaluate"]) if how.get("evaluate") else None}
    inputs = {role: here.catalog.show(ref).ref for role, ref in given.items() if ref is not None}
    code, folder = how.get("code", ""), ""
    made_by = version.inputs.get("code")
    own = version.card.code.ref if version.card and version.card.code else made_by
    if code and not code.startswith("code:"):
        own, folder = None, code
        if not Path(code).is_dir():
            raise Invalid(f"{code[:200]!r} is no folder", "name the folder of the model's code, or code:…")
    elif code:
        own = here.catalog.show(Ref.parse(code)).ref
    job = {name: how[name] for name in ("gpus", "cluster", "cpus", "memory") if name in how}
    out = Ref.parse(how["out"]) if how.get("out") else version.ref.bare
    if out.kind != "model" or out.version:
        raise Invalid(f"{out} names no model to publish", "for example out=model:fraud/small", out)
    return _Asked(version.ref, out, plan, inputs, own, folder, job)


def _number(name: str, text: str) -> float:
    try:
        return int(text) if _NUMBERS[name] is int else float(text)
    except ValueError:
        raise Invalid(f"{name} cannot be {str(text)[:40]!r}", "it must be a number") from None


def _beside(here: Here, asked: _Asked) -> Optimized:
    """Run it as a child of ours, and publish what it left."""
    from falaj.catalog.publishing import publish_code

    with tempfile.TemporaryDirectory(prefix="falaj-optimize-") as scratch:
        place = Path(scratch)
        wanted = {"model": asked.model, **asked.inputs, **({"code": asked.code} if asked.code else {})}
        for role, ref in wanted.items():
            here.catalog.checkout(ref, str(place / role))
        _looked_at(place / "model")
        folders = {role: str(place / role) for role in wanted}
        folders |= {"code": str(Path(asked.folder).resolve())} if asked.folder else {}
        plan = {**asked.plan, **folders, "out": str(place / "out"), "names": _names(asked)}
        (place / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        tried, ended = _heard(here, asked, _child(place / "plan.json"))
        if not ended["chosen"]:
            return _told(asked, tried, ended, None)
        code = asked.code or (publish_code(here, asked.model, Path(asked.folder)).ref if asked.folder else None)
        inputs = {"parent": asked.model, **asked.inputs, **({"code": code} if code else {})}
        words = f"{ended['chosen']} of {asked.model}"
        done = here.catalog.publish(asked.out, str(place / "out"), inputs=inputs, message=words)
        return _told(asked, tried, ended, done.ref)


def _in_job(here: Here, asked: _Asked) -> Optimized:
    """Run it as a job, which publishes what it leaves."""
    from falaj.catalog.publishing import publish_code
    from falaj.jobs.spec import spec_of

    code = asked.code or (publish_code(here, asked.model, Path(asked.folder)).ref if asked.folder else None)
    folders = {role: f"$FALAJ_INPUT_{role.upper()}" for role in asked.inputs}
    folders |= {"model": "$FALAJ_INPUT_PARENT", "out": "$FALAJ_OUTPUT_MODEL", **({"code": "."} if code else {})}
    command = ["python3", "-m", MODULE, json.dumps({**asked.plan, **folders, "names": _names(asked)})]
    spec = spec_of({**_JOB, **asked.job, "command": command})
    job = Ref("job", asked.model.project, f"optimize-{asked.model.name[:50]}-{new_id()[-8:]}")
    here.jobs.add(job, spec, code=code, inputs={"parent": asked.model, **asked.inputs}, outputs={"model": asked.out})
    tried, ended = _heard(here, asked, said_by_job(here, job, _OURS))
    return _told(asked, tried, ended, here.jobs.show(job).outputs["model"] if ended["chosen"] else None)


def _heard(here: Here, asked: _Asked, said: Lines) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What it says until the end. Closed whatever happens: who is interrupted ends what it started."""
    tried, ended = list[dict[str, Any]](), dict[str, Any]()
    with closing(said), here.progress.task(f"optimising {asked.model}", None, "steps") as task:
        for line in said:
            tried += [line["tried"]] if "tried" in line else []
            ended = line.get("ended", ended)
            task.advance("step" in line)
            if ended and not ended["chosen"]:
                break
    if not ended:
        raise UserCodeFailed(f"{asked.model} was not optimised, and nobody said why", "try fewer methods", asked.model)
    return tried, ended


def _child(plan: Path) -> Lines:
    """Nothing of the platform is in its environment: the model's code runs there."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
    try:
        yield from said_by_child([MODULE, str(plan)], _OURS, known)
    except Broken as error:
        code, how = error.args
        if code != _NOTHING_CHOSEN:
            hint = "pip install 'falaj[optimize]', or more memory"
            raise UserCodeFailed(f"the optimisation ended {how}", hint) from error


def _looked_at(folder: Path) -> None:
    """Refuse hostile and broken files before anything opens them."""
    from falaj.content.formats import inspect

    inspect(folder)


def _names(asked: _Asked) -> dict[str, str]:
    named = {"parent": asked.model, **asked.inputs, **({"code": asked.code} if asked.code else {})}
    return {role: str(ref) for role, ref in named.items()}


def _told(asked: _Asked, tried: Sequence[dict[str, Any]], ended: Mapping[str, Any], ref: Ref | None) -> Optimized:
    from falaj.jobs.report import tabled  # loads numpy, for which the help of every verb of the catalog would wait

    chosen, measure = ended["chosen"] or "", ended["measure"]
    head = ("", "variant", "verdict", measure, "p50", "p95", "rows/s", "speed", "size", "packed", "memory", "why")
    best = sorted((one for one in tried if one["frontier"]), key=lambda one: -one["speed"])
    whole = next((one for one in tried if one["name"] == chosen), None)
    lines = [*tabled(head, [_row(one, chosen) for one in tried]), ""]
    if ended["parity"] is not None:
        lines.append(f"the export answers as the model does: {ended['parity']:.1e} of an output's spread apart at most")
    lines.append(f"frontier, fastest first: {', '.join(one['name'] for one in best)}")
    lines += [f"note: {one}" for one in ended["notes"]]
    if ref is not None and whole is not None:
        lines.append(f"chosen: {chosen}, {whole['speed']:.2f} times as fast as it was; published as {ref}")
    else:
        lines.append(f"nothing within {asked.plan['max_loss']:.2%} is faster: nothing is published")
    return Optimized(
        asked.model, ref, chosen, measure, asked.plan["max_loss"], tuple(tried), tuple(ended["notes"]), tuple(lines)
    )


def _row(one: Mapping[str, Any], chosen: str) -> tuple[str, ...]:
    mark = "→" if one["name"] == chosen else "*" if one["frontier"] else ""
    if not one["speed"]:
        return (mark, one["name"], one["verdict"], *[""] * 8, one["note"])
    return (
        mark, one["name"], one["verdict"], f"{one['quality']:.4f}", f"{one['p50_us']:,.0f} us",
        f"{one['p95_us']:,.0f} us", f"{one['rows_s']:,.0f}", f"{one['speed']:.2f}x",
        *(_mib(one[name]) for name in ("size_bytes", "packed_bytes", "memory_bytes")), one["note"],
    )  # fmt: skip


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.2f} MiB" if size else ""
