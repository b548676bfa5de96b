"""Make a model smaller and faster, beside the caller or in a job, and publish what was chosen as its child."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from falaj.core.client_command import Client, client_command
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.event import generate_id
from falaj.core.ref import Ref
from falaj.study.command_output import ChildFailed, OutputLines, follow_child, follow_job

OPTIMIZE_MODULE = "falaj.optimize"
_LINE_PREFIXES = ('{"step"', '{"tried"', '{"ended"', '{"error"')
_NOTHING_CHOSEN = 3
_JOB_DEFAULTS = {"cpus": 1, "memory": "8GiB", "limit": "8h"}
_NUMBER_TYPES = {"seed": int, "threads": int, "epochs": int, "rounds": int, "share": float, "width": float}
OPTION_NAMES = ("code", "evaluate", "methods", "student", "out", "gpus", "cluster", "cpus", "memory", *_NUMBER_TYPES)


@dataclass(frozen=True, slots=True)
class OptimizeResult:
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
class _OptimizeRequest:
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


@client_command
def optimize(
    client: Client,
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
) -> OptimizeResult:
    """Make a model smaller and faster: try every method, measure each here, publish the fastest within the bound.

    The model is exported to ONNX and its answers are compared with its own; then fusion, 8 bits, 16 bits, pruning and
    a distilled student are tried, and judged on rows that were not learnt from. What loses more than the bound is shown
    and never published. The chosen one becomes the next version, with the model and the data as its inputs, and the
    evidence in optimize.json.

    Example:
        falaj optimize model:fraud/scorer@v7 --for cpu --max-loss 0.5% --data dataset:fraud/tx --target label
        falaj catalog optimize model:fraud/scorer --data dataset:fraud/tx --how code=./src --how methods=distil
    """
    request = _build_request(
        client, model, {"aim": aim, "max_loss": parse_fraction(max_loss), "target": target}, data, how or {}
    )
    run_request = _run_as_job if request.job else _run_as_child
    return run_request(client, request)


def parse_fraction(text: str) -> float:
    """0.5% or 0.005."""
    try:
        share = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise Invalid(f"{text[:40]!r} is no share", "for example 0.5%")
    return share


def _build_request(
    client: Client, model: Ref, settings: Mapping[str, Any], data: Ref | None, options: Mapping[str, str]
) -> _OptimizeRequest:
    if unknown := sorted(set(options) - set(OPTION_NAMES)):
        raise Invalid(f"there is no {unknown[0][:40]!r}", f"there are: {', '.join(OPTION_NAMES)}")
    if model.kind != "model":
        raise Invalid(f"{model} is no model", "for example model:fraud/scorer", model)
    version = client.catalog.show(model)
    plan: dict[str, Any] = {
        **settings,
        **{name: _parse_number(name, options[name]) for name in _NUMBER_TYPES if name in options},
    }
    plan |= {"student": options.get("student", "")}
    plan |= {"methods": [method for method in options.get("methods", "").replace("+", ",").split(",") if method]}
    data_refs = {"data": data, "evaluate": Ref.parse(options["evaluate"]) if options.get("evaluate") else None}
    inputs = {role: client.catalog.show(ref).ref for role, ref in data_refs.items() if ref is not None}
    code, folder = options.get("code", ""), ""
    code_input = version.inputs.get("code")
    code_ref = version.card.code.ref if version.card and version.card.code else code_input
    if code and not code.startswith("code:"):
        code_ref, folder = None, code
        if not Path(code).is_dir():
            raise Invalid(f"{code[:200]!r} is no folder", "name the folder of the model's code, or code:…")
    elif code:
        code_ref = client.catalog.show(Ref.parse(code)).ref
    job = {name: options[name] for name in ("gpus", "cluster", "cpus", "memory") if name in options}
    out = Ref.parse(options["out"]) if options.get("out") else version.ref.bare
    if out.kind != "model" or out.version:
        raise Invalid(f"{out} names no model to publish", "for example out=model:fraud/small", out)
    return _OptimizeRequest(version.ref, out, plan, inputs, code_ref, folder, job)


def _parse_number(name: str, text: str) -> float:
    try:
        return int(text) if _NUMBER_TYPES[name] is int else float(text)
    except ValueError:
        raise Invalid(f"{name} cannot be {str(text)[:40]!r}", "it must be a number") from None


def _run_as_child(client: Client, request: _OptimizeRequest) -> OptimizeResult:
    """Run it as a child of ours, and publish what it left."""
    from falaj.catalog.publishing import publish_code

    with tempfile.TemporaryDirectory(prefix="falaj-optimize-") as scratch:
        work_folder = Path(scratch)
        refs_by_role = {"model": request.model, **request.inputs, **({"code": request.code} if request.code else {})}
        for role, ref in refs_by_role.items():
            client.catalog.checkout(ref, str(work_folder / role))
        _inspect_files(work_folder / "model")
        folders = {role: str(work_folder / role) for role in refs_by_role}
        folders |= {"code": str(Path(request.folder).resolve())} if request.folder else {}
        plan = {**request.plan, **folders, "out": str(work_folder / "out"), "names": _name_inputs(request)}
        (work_folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        tried, ended = _read_until_end(client, request, _follow_optimizer(work_folder / "plan.json"))
        if not ended["chosen"]:
            return _build_result(request, tried, ended, None)
        code = request.code or (
            publish_code(client, request.model, Path(request.folder)).ref if request.folder else None
        )
        inputs = {"parent": request.model, **request.inputs, **({"code": code} if code else {})}
        publish_message = f"{ended['chosen']} of {request.model}"
        published = client.catalog.publish(
            request.out, str(work_folder / "out"), inputs=inputs, message=publish_message
        )
        return _build_result(request, tried, ended, published.ref)


def _run_as_job(client: Client, request: _OptimizeRequest) -> OptimizeResult:
    """Run it as a job, which publishes what it leaves."""
    from falaj.catalog.publishing import publish_code
    from falaj.jobs.spec import parse_spec

    code = request.code or (publish_code(client, request.model, Path(request.folder)).ref if request.folder else None)
    folders = {role: f"$FALAJ_INPUT_{role.upper()}" for role in request.inputs}
    folders |= {"model": "$FALAJ_INPUT_PARENT", "out": "$FALAJ_OUTPUT_MODEL", **({"code": "."} if code else {})}
    command = [
        "python3",
        "-m",
        OPTIMIZE_MODULE,
        json.dumps({**request.plan, **folders, "names": _name_inputs(request)}),
    ]
    spec = parse_spec({**_JOB_DEFAULTS, **request.job, "command": command})
    job = Ref("job", request.model.project, f"optimize-{request.model.name[:50]}-{generate_id()[-8:]}")
    client.jobs.add(
        job, spec, code=code, inputs={"parent": request.model, **request.inputs}, outputs={"model": request.out}
    )
    tried, ended = _read_until_end(client, request, follow_job(client, job, _LINE_PREFIXES))
    return _build_result(request, tried, ended, client.jobs.show(job).outputs["model"] if ended["chosen"] else None)


def _read_until_end(
    client: Client, request: _OptimizeRequest, output_lines: OutputLines
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What it says until the end. Closed whatever happens: who is interrupted ends what it started."""
    tried, ended = list[dict[str, Any]](), dict[str, Any]()
    with closing(output_lines), client.progress.task(f"optimising {request.model}", None, "steps") as task:
        for line in output_lines:
            tried += [line["tried"]] if "tried" in line else []
            ended = line.get("ended", ended)
            task.advance("step" in line)
            if ended and not ended["chosen"]:
                break
    if not ended:
        raise UserCodeFailed(
            f"{request.model} was not optimised, and nobody said why", "try fewer methods", request.model
        )
    return tried, ended


def _follow_optimizer(plan: Path) -> OutputLines:
    """Nothing of the platform is in its environment: the model's code runs there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
    try:
        yield from follow_child([OPTIMIZE_MODULE, str(plan)], _LINE_PREFIXES, environment)
    except ChildFailed as error:
        code, outcome = error.args
        if code != _NOTHING_CHOSEN:
            hint = "pip install 'falaj[optimize]', or more memory"
            raise UserCodeFailed(f"the optimisation ended {outcome}", hint) from error


def _inspect_files(folder: Path) -> None:
    """Refuse hostile and broken files before anything opens them."""
    from falaj.content.model_formats import inspect_model

    inspect_model(folder)


def _name_inputs(request: _OptimizeRequest) -> dict[str, str]:
    named = {"parent": request.model, **request.inputs, **({"code": request.code} if request.code else {})}
    return {role: str(ref) for role, ref in named.items()}


def _build_result(
    request: _OptimizeRequest, tried: Sequence[dict[str, Any]], ended: Mapping[str, Any], ref: Ref | None
) -> OptimizeResult:
    from falaj.jobs.report import (
        format_table,  # loads numpy, for which the help of every verb of the catalog would wait
    )

    chosen, measure = ended["chosen"] or "", ended["measure"]
    head = ("", "variant", "verdict", measure, "p50", "p95", "rows/s", "speed", "size", "packed", "memory", "why")
    on_frontier = sorted((variant for variant in tried if variant["frontier"]), key=lambda variant: -variant["speed"])
    chosen_variant = next((variant for variant in tried if variant["name"] == chosen), None)
    lines = [*format_table(head, [_format_row(variant, chosen) for variant in tried]), ""]
    if ended["parity"] is not None:
        lines.append(f"the export answers as the model does: {ended['parity']:.1e} of an output's spread apart at most")
    lines.append(f"frontier, fastest first: {', '.join(variant['name'] for variant in on_frontier)}")
    lines += [f"note: {variant}" for variant in ended["notes"]]
    if ref is not None and chosen_variant is not None:
        lines.append(f"chosen: {chosen}, {chosen_variant['speed']:.2f} times as fast as it was; published as {ref}")
    else:
        lines.append(f"nothing within {request.plan['max_loss']:.2%} is faster: nothing is published")
    return OptimizeResult(
        request.model, ref, chosen, measure, request.plan["max_loss"], tuple(tried), tuple(ended["notes"]), tuple(lines)
    )


def _format_row(variant: Mapping[str, Any], chosen: str) -> tuple[str, ...]:
    mark = "→" if variant["name"] == chosen else "*" if variant["frontier"] else ""
    if not variant["speed"]:
        return (mark, variant["name"], variant["verdict"], *[""] * 8, variant["note"])
    return (
        mark, variant["name"], variant["verdict"], f"{variant['quality']:.4f}", f"{variant['p50_us']:,.0f} us",
        f"{variant['p95_us']:,.0f} us", f"{variant['rows_s']:,.0f}", f"{variant['speed']:.2f}x",
        *(_format_mib(variant[name]) for name in ("size_bytes", "packed_bytes", "memory_bytes")), variant["note"],
    )  # fmt: skip


def _format_mib(size: int) -> str:
    return f"{size / (1 << 20):.2f} MiB" if size else ""
