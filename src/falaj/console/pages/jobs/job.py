"""One job: where it stands, its attempts, what it says, does, and costs."""

from collections.abc import Callable, Iterable, Mapping

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address, href
from falaj.console.pages.jobs.figures import cost, figures, profile
from falaj.console.pages.jobs.listing import needs, progress, queue_link, who
from falaj.console.pages.jobs.logs import logs
from falaj.console.pages.jobs.waiting import waiting
from falaj.console.parts import Column, Field, Row
from falaj.console.plots import Span, timeline
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.jobs.records import CANCELLED, FAILED, HELD, SUCCEEDED, WAITING, JobView, Tried
from falaj.schedule.model import BANDS

SOON_S = 10.0
_TABS = ("overview", "logs", "figures", "profile", "cost")


def job(view: View) -> Page:
    """The page of one job."""
    ref = Ref.parse(view.args["ref"])
    one: JobView = view.here.jobs.show(ref)
    makes: dict[str, Callable[[View, JobView], Html]] = {
        "overview": _overview, "logs": logs, "figures": figures, "profile": profile, "cost": cost,
    }  # fmt: skip
    tab = view.query("tab") if view.query("tab") in makes else "overview"
    tabs = parts.tabs(view, [(name, view.t.of("jobs.tab", name)) for name in _TABS])
    body = join(_head(view, one), tabs, view.part(lambda: makes[tab](view, one)))
    crumbs = ((h.bdi(ref.project), address("jobs", {"project": ref.project})),)
    scripts = ("jobs.js",) if tab == "logs" else ("plots.js",)
    every_s = 0.0 if one.over else SOON_S
    return Page(h.bdi(ref.name), body, crumbs, live=("jobs",), every_s=every_s, scripts=scripts)


def _head(view: View, one: JobView) -> Html:
    t, acts = view.t, list[Html]()
    if not one.over:
        reason = (Field("reason", t("console.reason")),)
        acts.append(parts.action(view, "jobs", "cancel", {"job": one.ref}, t("jobs.cancel"), reason, danger=True,
                                 confirm=t("jobs.cancel_sure", name=one.ref.name), id="cancel"))  # fmt: skip
    if one.state in (WAITING, HELD):
        acts.append(_change(view, one))
    if one.state in (FAILED, CANCELLED):
        acts.append(parts.action(view, "jobs", "retry", {"job": one.ref}, t("jobs.retry"), primary=True, id="retry"))
    acts.append(h.a(t("jobs.ask_like"), href=address("jobs/new", {"from": str(one.ref)}), class_="button"))
    acts.append(h.a(t("jobs.its_run"), href=href(one.run), class_="button"))
    state = h.p(parts.badge(view, one.state), " ", h.span(one.note, dir="auto") if one.over else None)
    return join(state, progress(view, one), h.div(acts, class_="actions"))


def _change(view: View, one: JobView) -> Html:
    t, role = view.t, one.spec.roles[0]
    bands = [(band, t.of("jobs.band", band)) for band in BANDS]
    fields = (
        Field("workers", t("jobs.workers"), "number", str(role.count)),
        Field("gpus", t("jobs.gpus_each"), "number", f"{role.gpus:g}"),
        Field("cpus", t("jobs.cores"), "number", f"{role.cpus:g}"),
        Field("memory", t("jobs.memory"), value=role.memory),
        Field("band", t("jobs.band"), "select", one.spec.band, bands),
    )  # fmt: skip
    return parts.action(view, "jobs", "change", {"job": one.ref}, t("jobs.ask_for_less"), fields, id="change")


def _overview(view: View, one: JobView) -> Html:
    t = view.t
    why = view.part(lambda: waiting(view, one.ref)) if one.state in (WAITING, HELD) else EMPTY
    drawn = h.section(timeline(view, spans(view, one), title=t("jobs.timeline")), class_="card", id="timeline")
    tried = parts.card(t("jobs.attempts"), _attempts(view, one), id="attempts") if one.attempts else EMPTY
    about = parts.card(t("console.details"), _facts(view, one), id="facts")
    return join(why, drawn, tried, about, parts.card(t("jobs.links"), _links(view, one), id="links"))


def spans(view: View, one: JobView) -> list[Span]:
    """What it did when: it waited before each attempt, and each attempt ran until its outcome."""
    row, waits = str(view.t("jobs.row_wait")), str(view.t.of("console.state", "waiting"))
    found, free = list[Span](), one.submitted_at
    for tried in one.attempts:
        ended = tried.ended or view.now
        began = tried.started or ended
        placed = min(tried.admitted or began, began)
        if placed > free:
            found.append(Span(row, waits, free, placed, "waiting"))
        name, link = str(view.t("jobs.attempt", number=tried.number)), view.link(tab="logs", attempt=tried.number)
        if began > placed:
            found.append(Span(name, str(view.t.of("console.state", "starting")), placed, began, "starting"))
        state = tried.outcome.partition(":")[0] or "running"
        if tried.started:
            found.append(Span(name, ", ".join(tried.nodes), began, ended, state, link))
        if began <= one.saved_at <= ended:
            found.append(Span(str(view.t("jobs.saved")), "", one.saved_at, one.saved_at, "kept"))
        free = ended
    if not one.over and (not one.attempts or one.attempts[-1].ended):
        found.append(Span(row, str(view.t.of("console.state", one.state)), free, view.now, one.state))
    return found


def _attempts(view: View, one: JobView) -> Html:
    t = view.t
    columns = (Column("#", "n"), t("console.state"), t("jobs.nodes"), Column(t("jobs.slots"), "n"),
               Column(t("console.started"), "n"), Column(t("console.took"), "n"), Column(t("jobs.code"), "n"),
               t("jobs.tab.logs"))  # fmt: skip
    return parts.table(view, columns, [_attempt(view, tried) for tried in reversed(one.attempts)], t("jobs.attempts"))


def _attempt(view: View, tried: Tried) -> Row:
    state, _, why = tried.outcome.partition(": ")
    said = join(parts.badge(view, state or ("running" if tried.started else "starting")), " ", h.span(why, dir="auto"))
    nodes = [h.a(h.bdi(node), href=address(f"clusters/{node}"), class_="ref") for node in tried.nodes[:8]]
    more = h.span(f" +{len(tried.nodes) - 8}") if len(tried.nodes) > 8 else None
    took = (tried.ended or view.now) - tried.started if tried.started else 0.0
    link = h.a(view.t("jobs.read"), href=view.link(tab="logs", attempt=tried.number))
    return Row((view.number(tried.number), said, join(*(join(node, " ") for node in nodes), more),
                view.number(tried.width), view.when(tried.started), view.duration(took),
                view.number(tried.code) if tried.ended else "", link), id=f"attempt-{tried.number}")  # fmt: skip


def _facts(view: View, one: JobView) -> Html:
    t, spec = view.t, one.spec
    return parts.facts({
        t("jobs.command"): h.code(" ".join(spec.command), dir="ltr"),
        t("jobs.needs"): needs(view, spec.roles),
        t("jobs.queue"): queue_link(one.queue),
        t("jobs.band"): t.of("jobs.band", one.band),
        t("jobs.limit"): view.duration(spec.limit_s) if spec.limit_s else "",
        t("jobs.retries"): view.number(spec.retries) if spec.retries else "",
        t("console.who"): who(one.person or one.author),
        t("jobs.asked_at"): view.when(one.submitted_at),
        t("console.ended"): view.when(one.ended_at) if one.ended_at else "",
        t("jobs.ran"): view.duration(one.ran_s) if one.ran_s else "",
        t("jobs.gpu_time"): view.duration(one.gpu_s) if one.gpu_s else "",
        t("jobs.evictions"): view.number(one.evictions) if one.evictions else "",
        t("jobs.saved"): view.when(one.saved_at) if one.saved_at else "",
        t("console.zone"): join(*(parts.tag(zone) for zone in one.zones)),
        t("jobs.framework"): h.bdi(spec.framework) if spec.framework != "plain" else "",
        t("jobs.env"): join(*(parts.tag(f"{key}={value}") for key, value in spec.env.items())),
    })  # fmt: skip


def _links(view: View, one: JobView) -> Html:
    t = view.t
    code: Mapping[str, Ref] = {"code": one.code} if one.code else {}
    groups: Iterable[tuple[Html, Mapping[str, Ref]]] = (
        (t("jobs.inputs"), one.inputs), (t("jobs.code_version"), code), (t("jobs.outputs"), one.outputs),
        (t("jobs.after"), {ref.name: ref for ref in one.after}), (t("console.run"), {"run": one.run}),
    )  # fmt: skip
    made = [
        (name, [h.div(h.small(h.bdi(role), class_="soft"), " ", parts.ref(view, ref)) for role, ref in refs.items()])
        for name, refs in groups if refs
    ]  # fmt: skip
    note = h.p(t("jobs.not_yet"), class_="soft") if one.outputs and one.state != SUCCEEDED else None
    return join(parts.facts(made), note)
