"""Ask for a job: fill in what to run, see what would be asked for, then ask. The address is the draft."""

import shlex
from dataclasses import replace
from typing import Any

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.markup import Html, escape_text, h, join_html
from falaj.console.page import Page, build_resource_url
from falaj.console.page_view import PageView, render_error
from falaj.console.pages.jobs.job_list import render_needs, render_queue_link
from falaj.core.argument_binding import bind_arguments
from falaj.core.errors import FalajError, Invalid
from falaj.core.operation import get_operation
from falaj.core.ref import Ref
from falaj.fleet.amounts import parse_seconds
from falaj.jobs.records import JobView
from falaj.schedule.model import BANDS
from falaj.services import load_service_class

MAX_CODE_VERSIONS = 100


def render_form_page(view: PageView) -> Page:
    """The form, and below it what it comes to."""
    form_values = {**_copy_from_job(view), **{name: value for name, value in view.asked.items() if name != "from"}}
    form_card = components.card(view.t("jobs.what_to_run"), _render_form(view, form_values), id="form")
    draft_card = (
        _render_draft(view, form_values)
        if view.query("command")
        else components.notice("plain", view.t("jobs.ask_hint"))
    )
    return Page(view.t("jobs.ask"), join_html(form_card, draft_card))


def build_job_arguments(form_values: dict[str, str]) -> dict[str, Any]:
    """The arguments of `jobs.add`, from what was filled in."""
    try:
        command = shlex.split(form_values.get("command", ""))
    except ValueError as error:
        raise Invalid(f"the command cannot be read: {error}", "close every quote") from None
    role: dict[str, Any] = {
        "count": int(_parse_number(form_values, "workers", 1)),
        "cpus": _parse_number(form_values, "cpus", 1),
    }
    role |= {"gpus": _parse_number(form_values, "gpus", 0), "memory": form_values.get("memory") or "1GiB"}
    models = [
        gpu_model.strip()
        for gpu_model in form_values.get("models", "").split(",")
        if gpu_model.strip() not in ("", "any")
    ]
    role |= {"gpu_models": models} if models else {}
    spec: dict[str, Any] = {"command": command, "roles": [role]}
    spec |= {name: form_values[name] for name in ("queue", "band", "cluster") if form_values.get(name)}
    spec |= {"limit_s": parse_seconds(form_values["limit"])} if form_values.get("limit") else {}
    spec |= {"retries": int(_parse_number(form_values, "retries", 0))} if form_values.get("retries") else {}
    job_arguments: dict[str, Any] = {
        "job": f"job:{form_values.get('project') or 'main'}/{form_values.get('name') or 'job'}",
        "spec": spec,
    }
    job_arguments |= {
        name: _parse_refs(form_values[name]) for name in ("inputs", "outputs") if form_values.get(name, "").strip()
    }
    return {**job_arguments, "code": form_values["code"]} if form_values.get("code") else job_arguments


def _parse_number(form_values: dict[str, str], name: str, default: float) -> float:
    try:
        return float(form_values.get(name) or default)
    except ValueError:
        raise Invalid(f"{name} is no number: {form_values[name][:40]!r}", "write digits") from None


def _parse_refs(lines: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in lines.splitlines() if line.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise Invalid("a line has no name", "one a line, for example data=dataset:project/name@v3")
    return {name.strip(): ref.strip() for name, _, ref in pairs}


def _render_draft(view: PageView, form_values: dict[str, str]) -> Html:
    """What would be asked for, checked by the verb itself; then the button."""
    t = view.t
    try:
        job_arguments = build_job_arguments(form_values)
        bound_arguments = bind_arguments(get_operation(load_service_class("jobs"), "add"), (), job_arguments)
        job: JobView = view.here.jobs.add(**{**bound_arguments, "dry": True})
    except FalajError as error:
        return render_error(view, error)
    checked_facts = components.fact_list(
        {
            t("console.job"): h.bdi(str(job.ref)),
            t("jobs.command"): h.code(shlex.join(job.spec.command), dir="ltr"),
            t("jobs.needs"): render_needs(view, job.spec.roles),
            t("jobs.queue"): render_queue_link(job.queue),
            t("jobs.code_version"): components.ref_link(view, job.code) if job.code else t("console.none"),
            t("jobs.inputs"): join_html(*(h.div(components.ref_link(view, ref)) for ref in job.inputs.values())),
            t("console.zone"): join_html(*(components.tag(zone) for zone in job.zones)),
        }
    )
    submit_button = components.action_button(
        view,
        "jobs",
        "add",
        job_arguments,
        t("jobs.submit"),
        primary=True,
        back=build_resource_url(job.ref),
        about=job.ref,
        id="submit",
    )
    return components.card(t("jobs.checked"), checked_facts, h.div(submit_button, class_="actions"), id="draft")


def _copy_from_job(view: PageView) -> dict[str, str]:
    """What another job was given, to begin with."""
    if not view.query("from"):
        return {}
    job: JobView = view.here.jobs.show(Ref.parse(view.query("from")))
    role, spec = job.spec.roles[0], job.spec
    return {
        "project": job.ref.project,
        "name": f"{job.ref.name}-again"[:60],
        "command": shlex.join(spec.command),
        "cpus": f"{role.cpus:g}",
        "gpus": f"{role.gpus:g}" if role.gpus else "",
        "memory": role.memory,
        "workers": str(role.count),
        "models": ",".join(role.gpu_models),
        "queue": job.queue,
        "band": spec.band,
        "limit": f"{spec.limit_s}s" if spec.limit_s else "",
        "code": str(job.code or ""),
        "cluster": spec.cluster,
        "inputs": "\n".join(f"{name}={ref}" for name, ref in job.inputs.items()),
        "outputs": "\n".join(f"{name}={ref.bare}" for name, ref in job.outputs.items()),
        "retries": str(spec.retries) if spec.retries else "",
    }


def _render_form(view: PageView, form_values: dict[str, str]) -> Html:
    t, hint = view.t, view.t("jobs.pairs_hint")
    code_versions = view.here.catalog.list(kind="code", limit=MAX_CODE_VERSIONS).versions
    code_names = dict.fromkeys(
        [
            *([form_values["code"]] if form_values.get("code") else []),
            *(str(code_version.ref) for code_version in code_versions),
        ]
    )
    code_options = [(name, escape_text(name)) for name in code_names]
    bands = [(band, t.of("jobs.band", band)) for band in BANDS]
    fields = (
        FormField("project", t("console.project"), required=True),
        FormField("name", t("console.name"), required=True),
        FormField("command", t("jobs.command"), required=True, hint=t("jobs.command_hint")),
        FormField("code", t("jobs.code_version"), "select", options=(("", t("console.none")), *code_options)),
        FormField("cpus", t("jobs.cores"), "number", "1"),
        FormField("memory", t("jobs.memory"), value="1GiB"),
        FormField("gpus", t("jobs.gpus_each"), "number"),
        FormField("models", t("jobs.models")),
        FormField("workers", t("jobs.workers"), "number", "1"),
        FormField("queue", t("jobs.queue")),
        FormField("band", t("jobs.band"), "select", "normal", bands),
        FormField("limit", t("jobs.limit"), hint="2h, 30m"),
        FormField("retries", t("jobs.retries"), "number"),
        FormField("inputs", t("jobs.inputs"), "textarea", hint=hint),
        FormField("outputs", t("jobs.outputs"), "textarea"),
    )
    return components.filter_form(replace(view, asked=form_values), fields, t("jobs.check"))
