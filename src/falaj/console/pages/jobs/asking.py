"""Ask for a job: fill in what to run, see what would be asked for, then ask. The address is the draft."""

import shlex
from dataclasses import replace
from typing import Any

from falaj.console import parts
from falaj.console.markup import Html, h, join, text
from falaj.console.page import Page, href
from falaj.console.pages.jobs.listing import needs, queue_link
from falaj.console.parts import Field
from falaj.console.view import View, said
from falaj.core.bind import bind
from falaj.core.errors import FalajError, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb_of
from falaj.desks import desk_class
from falaj.fleet.amounts import seconds
from falaj.jobs.records import JobView
from falaj.schedule.model import BANDS

MOST_CODES = 100


def asking(view: View) -> Page:
    """The form, and below it what it comes to."""
    given = {**_like(view), **{name: value for name, value in view.asked.items() if name != "from"}}
    form = parts.card(view.t("jobs.what_to_run"), _form(view, given), id="form")
    drafted = _draft(view, given) if view.query("command") else parts.notice("plain", view.t("jobs.ask_hint"))
    return Page(view.t("jobs.ask"), join(form, drafted))


def draft(given: dict[str, str]) -> dict[str, Any]:
    """The arguments of `jobs.add`, from what was filled in."""
    try:
        command = shlex.split(given.get("command", ""))
    except ValueError as error:
        raise Invalid(f"the command cannot be read: {error}", "close every quote") from None
    role: dict[str, Any] = {"count": int(_number(given, "workers", 1)), "cpus": _number(given, "cpus", 1)}
    role |= {"gpus": _number(given, "gpus", 0), "memory": given.get("memory") or "1GiB"}
    models = [one.strip() for one in given.get("models", "").split(",") if one.strip() not in ("", "any")]
    role |= {"gpu_models": models} if models else {}
    spec: dict[str, Any] = {"command": command, "roles": [role]}
    spec |= {name: given[name] for name in ("queue", "band", "cluster") if given.get(name)}
    spec |= {"limit_s": seconds(given["limit"])} if given.get("limit") else {}
    spec |= {"retries": int(_number(given, "retries", 0))} if given.get("retries") else {}
    made: dict[str, Any] = {"job": f"job:{given.get('project') or 'main'}/{given.get('name') or 'job'}", "spec": spec}
    made |= {name: _refs(given[name]) for name in ("inputs", "outputs") if given.get(name, "").strip()}
    return {**made, "code": given["code"]} if given.get("code") else made


def _number(given: dict[str, str], name: str, default: float) -> float:
    try:
        return float(given.get(name) or default)
    except ValueError:
        raise Invalid(f"{name} is no number: {given[name][:40]!r}", "write digits") from None


def _refs(lines: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in lines.splitlines() if line.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise Invalid("a line has no name", "one a line, for example data=dataset:project/name@v3")
    return {name.strip(): ref.strip() for name, _, ref in pairs}


def _draft(view: View, given: dict[str, str]) -> Html:
    """What would be asked for, checked by the verb itself; then the button."""
    t = view.t
    try:
        wanted = draft(given)
        bound = bind(verb_of(desk_class("jobs"), "add"), (), wanted)
        one: JobView = view.here.jobs.add(**{**bound, "dry": True})
    except FalajError as error:
        return said(view, error)
    checked = parts.facts({
        t("console.job"): h.bdi(str(one.ref)), t("jobs.command"): h.code(shlex.join(one.spec.command), dir="ltr"),
        t("jobs.needs"): needs(view, one.spec.roles), t("jobs.queue"): queue_link(one.queue),
        t("jobs.code_version"): parts.ref(view, one.code) if one.code else t("console.none"),
        t("jobs.inputs"): join(*(h.div(parts.ref(view, ref)) for ref in one.inputs.values())),
        t("console.zone"): join(*(parts.tag(zone) for zone in one.zones)),
    })  # fmt: skip
    button = parts.action(view, "jobs", "add", wanted, t("jobs.submit"), primary=True, back=href(one.ref),
                          about=one.ref, id="submit")  # fmt: skip
    return parts.card(t("jobs.checked"), checked, h.div(button, class_="actions"), id="draft")


def _like(view: View) -> dict[str, str]:
    """What another job was given, to begin with."""
    if not view.query("from"):
        return {}
    one: JobView = view.here.jobs.show(Ref.parse(view.query("from")))
    role, spec = one.spec.roles[0], one.spec
    return {
        "project": one.ref.project, "name": f"{one.ref.name}-again"[:60], "command": shlex.join(spec.command),
        "cpus": f"{role.cpus:g}", "gpus": f"{role.gpus:g}" if role.gpus else "", "memory": role.memory,
        "workers": str(role.count), "models": ",".join(role.gpu_models), "queue": one.queue, "band": spec.band,
        "limit": f"{spec.limit_s}s" if spec.limit_s else "", "code": str(one.code or ""), "cluster": spec.cluster,
        "inputs": "\n".join(f"{name}={ref}" for name, ref in one.inputs.items()),
        "outputs": "\n".join(f"{name}={ref.bare}" for name, ref in one.outputs.items()),
        "retries": str(spec.retries) if spec.retries else "",
    }  # fmt: skip


def _form(view: View, given: dict[str, str]) -> Html:
    t, hint = view.t, view.t("jobs.pairs_hint")
    codes = view.here.catalog.list(kind="code", limit=MOST_CODES).versions
    names = dict.fromkeys([*([given["code"]] if given.get("code") else []), *(str(one.ref) for one in codes)])
    known = [(name, text(name)) for name in names]
    bands = [(band, t.of("jobs.band", band)) for band in BANDS]
    fields = (
        Field("project", t("console.project"), required=True), Field("name", t("console.name"), required=True),
        Field("command", t("jobs.command"), required=True, hint=t("jobs.command_hint")),
        Field("code", t("jobs.code_version"), "select", options=(("", t("console.none")), *known)),
        Field("cpus", t("jobs.cores"), "number", "1"), Field("memory", t("jobs.memory"), value="1GiB"),
        Field("gpus", t("jobs.gpus_each"), "number"), Field("models", t("jobs.models")),
        Field("workers", t("jobs.workers"), "number", "1"), Field("queue", t("jobs.queue")),
        Field("band", t("jobs.band"), "select", "normal", bands), Field("limit", t("jobs.limit"), hint="2h, 30m"),
        Field("retries", t("jobs.retries"), "number"),
        Field("inputs", t("jobs.inputs"), "textarea", hint=hint), Field("outputs", t("jobs.outputs"), "textarea"),
    )  # fmt: skip
    return parts.filters(replace(view, asked=given), fields, t("jobs.check"))
