"""One watch: how it stands, its windows, what moved, what it means, what was decided, and what follows."""

from collections.abc import Sequence

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address, href
from falaj.console.pages.monitor.drift import drift, finding_table
from falaj.console.pages.monitor.listing import follows
from falaj.console.parts import Field
from falaj.console.plots import TIME, Series, Span, line, timeline
from falaj.console.view import View
from falaj.console.writing import NOTHING
from falaj.core.ref import Ref
from falaj.monitor.records import Verdict, WatchView, Window, WindowPage

WINDOWS, MOST = 100, 50
_HELD = ("paused", "cooling", "frozen")
_MEANT = ("performance", "estimate", "fairness", "quality", "errors", "latency", "concept")


def watch(view: View) -> Page:
    """The watch of an endpoint, in parts."""
    named = Ref.parse(view.args["ref"])
    one: WatchView = view.here.monitor.show(Ref("endpoint", named.project, named.name))
    t, tab = view.t, view.query("tab")
    names = (
        ("", t("console.overview")), ("drift", t("monitor.drift")), ("service", t("monitor.service")),
        ("verdicts", t("monitor.verdicts")), ("plan", t("monitor.plan")),
    )  # fmt: skip
    body = {"drift": drift, "service": service, "verdicts": verdicts, "plan": plan}.get(tab, overview)(view, one)
    state = h.p(parts.badge(view, one.state), " ", parts.ref(view, one.ref), id="state")
    told = [parts.notice("warn", words) for words in (one.paused, one.note) if words]
    whole = join(state, told, _actions(view, one), parts.tabs(view, names), body)
    crumbs = ((h.bdi(one.ref.project), address("monitor", {"project": one.ref.project})),)
    return Page(h.bdi(one.ref.name), whole, crumbs=crumbs, live=("monitor", "serve"))


def _actions(view: View, one: WatchView) -> Html:
    t, reason = view.t, (Field("reason", view.t("console.reason")),)
    named = {"endpoint": one.ref}
    resume = parts.action(view, "monitor", "resume", named, t("monitor.resume"), reason, primary=True)
    pause = parts.action(view, "monitor", "pause", named, t("monitor.pause"), reason, confirm=t("monitor.pause_sure"))
    return h.div(resume if one.paused or one.state in _HELD else pause, class_="actions")


def overview(view: View, one: WatchView) -> Html:
    """The figures of now, the windows, what is open."""
    t, last = view.t, one.last
    failed = view.percent(last.errors / last.requests) if last and last.requests else NOTHING
    stats = (
        parts.stat(t("monitor.alarms_last"), view.number(last.alarms if last else 0), "", view.link(tab="drift"),
                   "bad" if last and last.alarms else "good"),
        parts.stat(t("monitor.rows_last"), view.number(last.rows if last else 0)),
        parts.stat(t("monitor.windows"), view.number(one.windows)),
        parts.stat(t("serve.failed"), failed, "", view.link(tab="service")),
        parts.stat(t("serve.p95"), view.duration(last.p95_ms / 1000) if last and last.p95_ms else NOTHING),
    )  # fmt: skip
    alarms = [found for found in last.findings if found.alarm] if last else []
    newest = (
        parts.card(t("monitor.last_window"), finding_table(view, one.ref, alarms, t("monitor.last_window")), id="last",
                   more=view.link(tab="drift"))
        if alarms
        else EMPTY
    )  # fmt: skip
    opened = [h.li(parts.ref(view, found)) for found in one.incidents[:MOST]]
    incidents = (
        parts.card(t("monitor.open_incidents"), h.ul(opened, class_="plain-list"), id="open") if opened else EMPTY
    )
    windows = h.div(view.part(lambda: _timeline(view, one)), class_="card", id="windows")
    return join(h.div(stats, class_="stats"), incidents, windows, newest)


def _timeline(view: View, one: WatchView) -> Html:
    told: WindowPage = view.here.monitor.windows(one.ref, since_s=30 * 86400.0, limit=WINDOWS)
    return timeline(view, spans(view, told.windows), title=view.t("monitor.windows"))


def spans(view: View, windows: Sequence[Window]) -> list[Span]:
    """A row for each revision: its windows, those with alarms marked."""
    return [
        Span(str(view.t("serve.revision_n", n=one.revision)), str(one.alarms or ""), one.since, one.until,
             "alarm" if one.alarms else "ok", view.link(tab="drift", window=int(one.until)))
        for one in sorted(windows, key=lambda one: (one.revision, one.since))
    ]  # fmt: skip


def service(view: View, one: WatchView) -> Html:
    """How good the answers are, by labels or foreseen, and how fast they come; fairness between groups."""
    t = view.t
    told: WindowPage = view.here.monitor.windows(one.ref, since_s=30 * 86400.0, limit=WINDOWS)
    if not told.windows:
        return parts.empty(view, t("monitor.no_windows"), t("monitor.no_windows_hint"))
    order = sorted(told.windows, key=lambda window: window.until)
    asked = [window for window in order if window.requests]
    ends = [window.until for window in asked]
    failed = Series("", ends, [100 * window.errors / window.requests for window in asked])
    slow = Series("", ends, [window.p95_ms for window in asked])
    drawn = [
        *(line(view, curves, title=name, x=TIME, height=220) for name, curves in measured(order).items()),
        line(view, [failed], title=t("serve.failed_percent"), x=TIME, height=180),
        line(view, [slow], title=t("serve.p95_ms"), x=TIME, height=180),
    ]
    found = [finding for finding in order[-1].findings if finding.what in _MEANT]
    table = (
        finding_table(view, one.ref, found, t("monitor.meaning"))
        if found
        else h.p(t("monitor.nothing_compared"), class_="soft")
    )
    return join(parts.cards(*(h.div(each, class_="card") for each in drawn)), parts.card(t("monitor.meaning"), table))


def measured(windows: Sequence[Window]) -> dict[str, list[Series]]:
    """Metrics over time, each with its interval: what labels say, and what is foreseen without them."""
    found: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for window in windows:
        for one in window.findings:
            if one.what in ("performance", "estimate") and not one.segment:
                point = (window.until, one.value, 1.96 * one.measures.get("error", 0.0))
                found.setdefault(one.measure, {}).setdefault(one.what, []).append(point)
    return {
        metric: [
            Series(what, [p[0] for p in points], [p[1] for p in points], [p[1] - p[2] for p in points],
                   [p[1] + p[2] for p in points])
            for what, points in sorted(kinds.items())
        ]
        for metric, kinds in list(found.items())[:6]
    }  # fmt: skip


def verdicts(view: View, one: WatchView) -> Html:
    """What was decided, on what evidence, and what came of it."""
    t = view.t
    told: tuple[Verdict, ...] = view.here.monitor.verdicts(one.ref, limit=MOST)
    if not told:
        return parts.empty(view, t("monitor.no_verdicts"), t("monitor.no_verdicts_hint"))
    return join([_verdict(view, one.ref, each) for each in told])


def _verdict(view: View, endpoint: Ref, one: Verdict) -> Html:
    t = view.t
    title = h.span(t.of("monitor.action", one.action), " ", parts.badge(view, one.state))
    known = parts.facts([
        (t("console.when"), view.when(one.at)), (t("monitor.began"), view.when(one.since) if one.since else ""),
        (t("serve.revision"), view.number(one.revision)), (t("console.kind"), t.of("monitor.what", one.what)),
        (t("monitor.flow"), parts.ref(view, one.flow) if one.flow else ""),
        (t("monitor.run"), h.a(h.bdi(one.run), href=href(one.run)) if one.run else ""),
        (t("monitor.outcome"), h.span(one.outcome, dir="auto") if one.outcome else ""),
    ])  # fmt: skip
    evidence = finding_table(view, endpoint, one.evidence, t("monitor.evidence")) if one.evidence else None
    return parts.card(title, h.p(view.english(one.said)), known, evidence, id=f"verdict-{one.id}")


def plan(view: View, one: WatchView) -> Html:
    """How closely it looks, what is too much, and what follows."""
    t, made = view.t, one.plan
    looks = parts.facts([
        (t("monitor.every"), view.duration(made.every_s)),
        (t("monitor.least_rows"), view.number(made.rules.least_rows)),
        (t("monitor.segment"), h.bdi(made.segment) if made.segment else ""),
        (t("monitor.alpha"), view.number(made.rules.alpha)),
        (t("monitor.least_step"), view.number(made.rules.least_step)),
        (t("monitor.persist"), t("monitor.of", n=made.rules.persist[0], many=made.rules.persist[1])),
        (t("monitor.too_many_errors"), view.percent(made.errors)),
        (t("monitor.too_slow"), view.duration(made.latency_ms / 1000) if made.latency_ms else t("serve.not_looked_at")),
        (t("monitor.against"), h.bdi(one.baseline)),
    ])  # fmt: skip
    acting = made.acting
    acts = parts.facts([
        (t("monitor.follows"), follows(view, one)), (t("monitor.cools"), view.duration(acting.cool_s)),
        (t("monitor.most_a_day"), view.number(acting.most_a_day)),
        (t("monitor.asks"), t.of("console.state", "yes" if acting.approval else "no")),
    ])  # fmt: skip
    field = Field("more", t("monitor.words"), "textarea", required=True, value=f"every_s={made.every_s:g}",
                  hint=t("monitor.words_hint"))  # fmt: skip
    button = parts.action(view, "monitor", "change", {"endpoint": one.ref}, t("monitor.change"), (field,))
    return join(parts.cards(parts.card(t("monitor.looks"), looks), parts.card(t("monitor.policy"), acts)), button)
