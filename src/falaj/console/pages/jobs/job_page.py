"""One job: where it stands, its attempts, what it says, does, and costs."""

from collections.abc import Callable, Iterable, Mapping

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.jobs.job_figures import render_cost, render_figures, render_profile
from falaj.console.pages.jobs.job_list import render_author, render_needs, render_progress, render_queue_link
from falaj.console.pages.jobs.job_logs import render_logs
from falaj.console.pages.jobs.wait_reason import render_wait_reason
from falaj.console.plots import TimelineSpan, timeline
from falaj.core.ref import Ref
from falaj.jobs.records import CANCELLED, FAILED, ON_HOLD, SUCCEEDED, WAITING, AttemptView, JobView
from falaj.schedule.model import BANDS

REFRESH_INTERVAL_S = 10.0
_TAB_NAMES = ("overview", "logs", "figures", "profile", "cost")


def render_job_page(view: PageView) -> Page:
    """The page of one job."""
    ref = Ref.parse(view.args["ref"])
    job_view: JobView = view.here.jobs.show(ref)
    renderers: dict[str, Callable[[PageView, JobView], Html]] = {
        "overview": _render_overview,
        "logs": render_logs,
        "figures": render_figures,
        "profile": render_profile,
        "cost": render_cost,
    }
    current_tab = view.query("tab") if view.query("tab") in renderers else "overview"
    tab_bar = components.tabs(view, [(name, view.t.of("jobs.tab", name)) for name in _TAB_NAMES])
    body = join_html(_render_head(view, job_view), tab_bar, view.part(lambda: renderers[current_tab](view, job_view)))
    crumbs = ((h.bdi(ref.project), build_url("jobs", {"project": ref.project})),)
    scripts = ("jobs.js",) if current_tab == "logs" else ("plots.js",)
    refresh_interval_s = 0.0 if job_view.over else REFRESH_INTERVAL_S
    return Page(h.bdi(ref.name), body, crumbs, live=("jobs",), every_s=refresh_interval_s, scripts=scripts)


def _render_head(view: PageView, job_view: JobView) -> Html:
    t, buttons = view.t, list[Html]()
    if not job_view.over:
        reason = (FormField("reason", t("console.reason")),)
        buttons.append(
            components.action_button(
                view,
                "jobs",
                "cancel",
                {"job": job_view.ref},
                t("jobs.cancel"),
                reason,
                danger=True,
                confirm=t("jobs.cancel_sure", name=job_view.ref.name),
                id="cancel",
            )
        )
    if job_view.state in (WAITING, ON_HOLD):
        buttons.append(_render_change_form(view, job_view))
    if job_view.state in (FAILED, CANCELLED):
        buttons.append(
            components.action_button(
                view, "jobs", "retry", {"job": job_view.ref}, t("jobs.retry"), primary=True, id="retry"
            )
        )
    buttons.append(h.a(t("jobs.ask_like"), href=build_url("jobs/new", {"from": str(job_view.ref)}), class_="button"))
    buttons.append(h.a(t("jobs.its_run"), href=build_resource_url(job_view.run), class_="button"))
    state_line = h.p(
        components.badge(view, job_view.state), " ", h.span(job_view.note, dir="auto") if job_view.over else None
    )
    return join_html(state_line, render_progress(view, job_view), h.div(buttons, class_="actions"))


def _render_change_form(view: PageView, job_view: JobView) -> Html:
    t, role = view.t, job_view.spec.roles[0]
    bands = [(band, t.of("jobs.band", band)) for band in BANDS]
    fields = (
        FormField("workers", t("jobs.workers"), "number", str(role.count)),
        FormField("gpus", t("jobs.gpus_each"), "number", f"{role.gpus:g}"),
        FormField("cpus", t("jobs.cores"), "number", f"{role.cpus:g}"),
        FormField("memory", t("jobs.memory"), value=role.memory),
        FormField("band", t("jobs.band"), "select", job_view.spec.band, bands),
    )
    return components.action_button(
        view, "jobs", "change", {"job": job_view.ref}, t("jobs.ask_for_less"), fields, id="change"
    )


def _render_overview(view: PageView, job_view: JobView) -> Html:
    t = view.t
    wait_reason = (
        view.part(lambda: render_wait_reason(view, job_view.ref)) if job_view.state in (WAITING, ON_HOLD) else EMPTY
    )
    timeline_card = h.section(
        timeline(view, list_spans(view, job_view), title=t("jobs.timeline")), class_="card", id="timeline"
    )
    attempts_card = (
        components.card(t("jobs.attempts"), _render_attempts(view, job_view), id="attempts")
        if job_view.attempts
        else EMPTY
    )
    facts_card = components.card(t("console.details"), _render_facts(view, job_view), id="facts")
    return join_html(
        wait_reason,
        timeline_card,
        attempts_card,
        facts_card,
        components.card(t("jobs.links"), _render_links(view, job_view), id="links"),
    )


def list_spans(view: PageView, job_view: JobView) -> list[TimelineSpan]:
    """What it did when: it waited before each attempt, and each attempt ran until its outcome."""
    wait_row, waiting_label = str(view.t("jobs.row_wait")), str(view.t.of("console.state", "waiting"))
    timeline_spans, idle_since = list[TimelineSpan](), job_view.submitted_at
    for attempt in job_view.attempts:
        ended_at = attempt.ended or view.now
        began_at = attempt.started or ended_at
        placed_at = min(attempt.admitted or began_at, began_at)
        if placed_at > idle_since:
            timeline_spans.append(TimelineSpan(wait_row, waiting_label, idle_since, placed_at, "waiting"))
        name, link = str(view.t("jobs.attempt", number=attempt.number)), view.link(tab="logs", attempt=attempt.number)
        if began_at > placed_at:
            timeline_spans.append(
                TimelineSpan(name, str(view.t.of("console.state", "starting")), placed_at, began_at, "starting")
            )
        state = attempt.outcome.partition(":")[0] or "running"
        if attempt.started:
            timeline_spans.append(TimelineSpan(name, ", ".join(attempt.nodes), began_at, ended_at, state, link))
        if began_at <= job_view.saved_at <= ended_at:
            timeline_spans.append(
                TimelineSpan(str(view.t("jobs.saved")), "", job_view.saved_at, job_view.saved_at, "kept")
            )
        idle_since = ended_at
    if not job_view.over and (not job_view.attempts or job_view.attempts[-1].ended):
        timeline_spans.append(
            TimelineSpan(
                wait_row, str(view.t.of("console.state", job_view.state)), idle_since, view.now, job_view.state
            )
        )
    return timeline_spans


def _render_attempts(view: PageView, job_view: JobView) -> Html:
    t = view.t
    columns = (
        ColumnHeader("#", "n"),
        t("console.state"),
        t("jobs.nodes"),
        ColumnHeader(t("jobs.slots"), "n"),
        ColumnHeader(t("console.started"), "n"),
        ColumnHeader(t("console.took"), "n"),
        ColumnHeader(t("jobs.code"), "n"),
        t("jobs.tab.logs"),
    )
    return components.table(
        view, columns, [_make_attempt_row(view, attempt) for attempt in reversed(job_view.attempts)], t("jobs.attempts")
    )


def _make_attempt_row(view: PageView, attempt: AttemptView) -> TableRow:
    state, _, reason = attempt.outcome.partition(": ")
    state_text = join_html(
        components.badge(view, state or ("running" if attempt.started else "starting")), " ", h.span(reason, dir="auto")
    )
    nodes = [h.a(h.bdi(node), href=build_url(f"clusters/{node}"), class_="ref") for node in attempt.nodes[:8]]
    more_note = h.span(f" +{len(attempt.nodes) - 8}") if len(attempt.nodes) > 8 else None
    duration_s = (attempt.ended or view.now) - attempt.started if attempt.started else 0.0
    link = h.a(view.t("jobs.read"), href=view.link(tab="logs", attempt=attempt.number))
    return TableRow(
        (
            view.number(attempt.number),
            state_text,
            join_html(*(join_html(node, " ") for node in nodes), more_note),
            view.number(attempt.width),
            view.when(attempt.started),
            view.duration(duration_s),
            view.number(attempt.code) if attempt.ended else "",
            link,
        ),
        id=f"attempt-{attempt.number}",
    )


def _render_facts(view: PageView, job_view: JobView) -> Html:
    t, spec = view.t, job_view.spec
    return components.fact_list(
        {
            t("jobs.command"): h.code(" ".join(spec.command), dir="ltr"),
            t("jobs.needs"): render_needs(view, spec.roles),
            t("jobs.queue"): render_queue_link(job_view.queue),
            t("jobs.band"): t.of("jobs.band", job_view.band),
            t("jobs.limit"): view.duration(spec.limit_s) if spec.limit_s else "",
            t("jobs.retries"): view.number(spec.retries) if spec.retries else "",
            t("console.who"): render_author(job_view.person or job_view.author),
            t("jobs.asked_at"): view.when(job_view.submitted_at),
            t("console.ended"): view.when(job_view.ended_at) if job_view.ended_at else "",
            t("jobs.ran"): view.duration(job_view.ran_s) if job_view.ran_s else "",
            t("jobs.gpu_time"): view.duration(job_view.gpu_s) if job_view.gpu_s else "",
            t("jobs.evictions"): view.number(job_view.evictions) if job_view.evictions else "",
            t("jobs.saved"): view.when(job_view.saved_at) if job_view.saved_at else "",
            t("console.zone"): join_html(*(components.tag(zone) for zone in job_view.zones)),
            t("jobs.framework"): h.bdi(spec.framework) if spec.framework != "plain" else "",
            t("jobs.env"): join_html(*(components.tag(f"{key}={value}") for key, value in spec.env.items())),
        }
    )


def _render_links(view: PageView, job_view: JobView) -> Html:
    t = view.t
    code_refs: Mapping[str, Ref] = {"code": job_view.code} if job_view.code else {}
    groups: Iterable[tuple[Html, Mapping[str, Ref]]] = (
        (t("jobs.inputs"), job_view.inputs),
        (t("jobs.code_version"), code_refs),
        (t("jobs.outputs"), job_view.outputs),
        (t("jobs.after"), {ref.name: ref for ref in job_view.after}),
        (t("console.run"), {"run": job_view.run}),
    )
    links_by_name = [
        (
            name,
            [
                h.div(h.small(h.bdi(role), class_="soft"), " ", components.ref_link(view, ref))
                for role, ref in refs.items()
            ],
        )
        for name, refs in groups
        if refs
    ]
    note = h.p(t("jobs.not_yet"), class_="soft") if job_view.outputs and job_view.state != SUCCEEDED else None
    return join_html(components.fact_list(links_by_name), note)
