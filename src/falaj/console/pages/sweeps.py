"""Sweeps: searches for good parameters, their trials and what matters."""

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, Route, href
from falaj.console.pages.track.shape import MOST_AXES, coordinates
from falaj.console.parts import Field
from falaj.console.plots import bars
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.study.records import SweepView, TrialView

_COMMAND = "falaj sweeps start train.py --space lr=log:1e-5..1e-1 --metric loss"
_PAGE, _TRIALS = 50, 200
_STATES = ("running", "stopping", "finished", "failed", "stopped")


def sweeps(view: View) -> Page:
    """Sweeps that the reader may see, newest first."""
    t, state = view.t, view.query("state")
    found = view.here.sweeps.list(
        project=view.query("project"), state=state if state in _STATES else "", mine=view.query("mine") == "on",
        after=view.query("page"), limit=_PAGE,
    )  # fmt: skip
    options = [("", t("console.all")), *((one, t.of("console.state", one)) for one in _STATES)]
    bar = parts.filters(view, (
        Field("project", t("console.project")), Field("state", t("console.state"), "select", options=options),
        Field("mine", t("sweeps.mine"), "checkbox"),
    ))  # fmt: skip
    rows = [
        parts.Row((parts.ref(view, one.ref, short=True), parts.badge(view, one.state), h.bdi(one.progress, dir="ltr"),
                   h.bdi(one.metric), view.number(one.value), h.bdi(one.author), view.ago(one.submitted_at)),
                  str(one.ref))
        for one in found.sweeps
    ]  # fmt: skip
    heads = (t("sweeps.sweep"), t("console.state"), t("sweeps.trials"), t("sweeps.metric"),
             parts.Column(t("sweeps.best"), "n"), t("console.by"), t("console.since"))  # fmt: skip
    shown = parts.table(view, heads, rows, t("console.room.sweeps"))
    if not rows:
        shown = parts.empty(view, t("sweeps.none"), t("sweeps.none_hint"), _COMMAND)
    return Page(t("console.room.sweeps"), join(bar, shown, parts.pager(view, found.next)), live=("sweeps",))


def sweep(view: View) -> Page:
    """One sweep: how far it is, its best, its trials, which parameters matter."""
    t, found = view.t, view.here.sweeps.show(Ref.parse(view.args["ref"]))
    head = h.div(parts.badge(view, found.state), _actions(view, found), class_="grid-bar")
    told = parts.facts([
        (t("sweeps.trials"), h.bdi(found.progress, dir="ltr")),
        (t("sweeps.metric"), h.bdi(f"{found.plan.goal} {found.metric}")), (t("sweeps.best"), view.number(found.value)),
        (t("sweeps.space"), h.code(", ".join(found.plan.space), dir="ltr")),
        (t("sweeps.how"), h.bdi(f"{found.plan.sampler}, {found.plan.stopper}")), (t("console.by"), h.bdi(found.author)),
        (t("console.since"), view.when(found.submitted_at)), (t("console.ended"), view.when(found.ended_at)),
        (t("console.note"), h.bdi(found.note)),
    ])  # fmt: skip
    matters = sorted(found.importance.items(), key=lambda one: -one[1])[:MOST_AXES]
    drawn = [parts.card(t("sweeps.matters"), bars(view, matters, title=t("sweeps.matters")))] if matters else []
    body = join(
        head,
        parts.cards(parts.card(t("console.overview"), told), *drawn),
        parts.card(t("sweeps.shape"), _across(view, found)) if len(found.trials) > 1 else EMPTY,
        parts.card(t("sweeps.trials"), _trials(view, found)),
    )  # fmt: skip
    return Page(h.bdi(found.ref.name), body, live=("sweeps", "jobs"), scripts=("plots.js",),
                every_s=0.0 if found.over else 5.0)  # fmt: skip


def _actions(view: View, found: SweepView) -> Html:
    t = view.t
    best = next((one for one in found.trials if one.number == found.best), None)
    keep = [
        parts.action(view, "sweeps", "keep", {"sweep": found.ref, "version": version}, t("sweeps.keep"),
                     (Field("name", t("sweeps.keep_as"), value=f"{version.kind}:{version.project}/", required=True),))
        for version in (best.outputs.values() if best else ())
    ]  # fmt: skip
    stop = parts.action(
        view, "sweeps", "stop", {"sweep": found.ref}, t("sweeps.stop"),
        (Field("let_finish", t("sweeps.let_finish"), "checkbox"), Field("reason", t("console.reason"))), danger=True,
    ) if not found.over else None  # fmt: skip
    return h.div(keep, stop, class_="actions")


def _across(view: View, found: SweepView) -> Html:
    names = sorted({key for one in found.trials for key in one.params})[: MOST_AXES - 1]
    told = [
        (str(one.number), f"{one.number}", href(one.run), [*(_plain(one.params.get(key)) for key in names), one.value])
        for one in found.trials
    ]
    return coordinates(view, [*names, found.metric], told)


def _plain(value: object) -> float | str | None:
    return value if value is None or isinstance(value, (float, str)) else str(value)


def _trials(view: View, found: SweepView) -> Html:
    t = view.t
    if not found.trials:
        return h.p(t("sweeps.no_trials"), class_="soft")
    names = sorted({key for one in found.trials for key in one.params})[:20]
    rows = [_trial(view, one, names, best=one.number == found.best) for one in found.trials[:_TRIALS]]
    number = [parts.Column(name, "n") for name in (h.bdi(found.metric), t("sweeps.step"), *map(h.bdi, names))]
    heads: list[parts.Column | str] = [
        parts.Column(t("sweeps.number"), "n"),
        t("console.state"),
        *number,
        t("console.job"),
        t("console.note"),
    ]
    more = h.p(t("sweeps.first_trials", n=_TRIALS), class_="soft") if len(found.trials) > _TRIALS else EMPTY
    return join(parts.table(view, heads, rows, t("sweeps.trials")), more)


def _trial(view: View, one: TrialView, names: list[str], *, best: bool) -> parts.Row:
    mark = h.span("★", title=view.t("sweeps.best"), role="img", aria_label=view.t("sweeps.best")) if best else EMPTY
    values = [h.bdi(str(one.params.get(key, ""))) for key in names]
    number = join(mark, " ", h.a(view.number(one.number), href=href(one.run)))
    return parts.Row(
        (number, parts.badge(view, one.state), view.number(one.value), view.number(one.step), *values,
         parts.ref(view, one.job, short=True), h.bdi(one.note[:200])), f"trial-{one.number}",
    )  # fmt: skip


ROUTES = (Route("sweeps", sweeps, walk=("sweeps",)), Route("sweeps/<ref>", sweep, walk=("sweeps/sweep:fraud/rates",)))
