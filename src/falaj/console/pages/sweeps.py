"""Sweeps: searches for good parameters, their trials and what matters."""

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, PageRoute, build_resource_url
from falaj.console.page_view import PageView
from falaj.console.pages.track.run_coordinates import MAX_AXES, render_coordinates
from falaj.console.plots import bar_chart
from falaj.core.ref import Ref
from falaj.study.records import SweepView, TrialView

_EXAMPLE_COMMAND = "falaj sweeps start train.py --space lr=log:1e-5..1e-1 --metric loss"
_PAGE_SIZE, _MAX_TRIALS = 50, 200
_SWEEP_STATES = ("running", "stopping", "finished", "failed", "stopped")


def render_sweeps_page(view: PageView) -> Page:
    """Sweeps that the reader may see, newest first."""
    t, state = view.t, view.query("state")
    sweep_page = view.here.sweeps.list(
        project=view.query("project"),
        state=state if state in _SWEEP_STATES else "",
        mine=view.query("mine") == "on",
        after=view.query("page"),
        limit=_PAGE_SIZE,
    )
    options = [("", t("console.all")), *((item, t.of("console.state", item)) for item in _SWEEP_STATES)]
    filter_bar = components.filter_form(
        view,
        (
            FormField("project", t("console.project")),
            FormField("state", t("console.state"), "select", options=options),
            FormField("mine", t("sweeps.mine"), "checkbox"),
        ),
    )
    rows = [
        components.TableRow(
            (
                components.ref_link(view, item.ref, short=True),
                components.badge(view, item.state),
                h.bdi(item.progress, dir="ltr"),
                h.bdi(item.metric),
                view.number(item.value),
                h.bdi(item.author),
                view.ago(item.submitted_at),
            ),
            str(item.ref),
        )
        for item in sweep_page.sweeps
    ]
    headers = (
        t("sweeps.sweep"),
        t("console.state"),
        t("sweeps.trials"),
        t("sweeps.metric"),
        components.ColumnHeader(t("sweeps.best"), "n"),
        t("console.by"),
        t("console.since"),
    )
    sweep_table = components.table(view, headers, rows, t("console.room.sweeps"))
    if not rows:
        sweep_table = components.empty_state(view, t("sweeps.none"), t("sweeps.none_hint"), _EXAMPLE_COMMAND)
    return Page(
        t("console.room.sweeps"),
        join_html(filter_bar, sweep_table, components.pager(view, sweep_page.next)),
        live=("sweeps",),
    )


def render_sweep_page(view: PageView) -> Page:
    """One sweep: how far it is, its best, its trials, which parameters matter."""
    t, sweep_view = view.t, view.here.sweeps.show(Ref.parse(view.args["ref"]))
    toolbar = h.div(components.badge(view, sweep_view.state), _render_actions(view, sweep_view), class_="grid-bar")
    sweep_facts = components.fact_list(
        [
            (t("sweeps.trials"), h.bdi(sweep_view.progress, dir="ltr")),
            (t("sweeps.metric"), h.bdi(f"{sweep_view.plan.goal} {sweep_view.metric}")),
            (t("sweeps.best"), view.number(sweep_view.value)),
            (t("sweeps.space"), h.code(", ".join(sweep_view.plan.space), dir="ltr")),
            (t("sweeps.how"), h.bdi(f"{sweep_view.plan.sampler}, {sweep_view.plan.stopper}")),
            (t("console.by"), h.bdi(sweep_view.author)),
            (t("console.since"), view.when(sweep_view.submitted_at)),
            (t("console.ended"), view.when(sweep_view.ended_at)),
            (t("console.note"), h.bdi(sweep_view.note)),
        ]
    )
    important_params = sorted(sweep_view.importance.items(), key=lambda name_and_value: -name_and_value[1])[:MAX_AXES]
    importance_cards = (
        [components.card(t("sweeps.matters"), bar_chart(view, important_params, title=t("sweeps.matters")))]
        if important_params
        else []
    )
    body = join_html(
        toolbar,
        components.card_grid(components.card(t("console.overview"), sweep_facts), *importance_cards),
        components.card(t("sweeps.shape"), _render_coordinates(view, sweep_view))
        if len(sweep_view.trials) > 1
        else EMPTY,
        components.card(t("sweeps.trials"), _render_trials(view, sweep_view)),
    )
    return Page(
        h.bdi(sweep_view.ref.name),
        body,
        live=("sweeps", "jobs"),
        scripts=("plots.js",),
        every_s=0.0 if sweep_view.over else 5.0,
    )


def _render_actions(view: PageView, sweep_view: SweepView) -> Html:
    t = view.t
    best_trial = next((trial for trial in sweep_view.trials if trial.number == sweep_view.best), None)
    keep_buttons = [
        components.action_button(
            view,
            "sweeps",
            "keep",
            {"sweep": sweep_view.ref, "version": version},
            t("sweeps.keep"),
            (FormField("name", t("sweeps.keep_as"), value=f"{version.kind}:{version.project}/", required=True),),
        )
        for version in (best_trial.outputs.values() if best_trial else ())
    ]
    stop_button = (
        components.action_button(
            view,
            "sweeps",
            "stop",
            {"sweep": sweep_view.ref},
            t("sweeps.stop"),
            (FormField("let_finish", t("sweeps.let_finish"), "checkbox"), FormField("reason", t("console.reason"))),
            danger=True,
        )
        if not sweep_view.over
        else None
    )
    return h.div(keep_buttons, stop_button, class_="actions")


def _render_coordinates(view: PageView, sweep_view: SweepView) -> Html:
    names = sorted({key for trial in sweep_view.trials for key in trial.params})[: MAX_AXES - 1]
    coordinate_rows = [
        (
            str(trial.number),
            f"{trial.number}",
            build_resource_url(trial.run),
            [*(_to_plain_value(trial.params.get(key)) for key in names), trial.value],
        )
        for trial in sweep_view.trials
    ]
    return render_coordinates(view, [*names, sweep_view.metric], coordinate_rows)


def _to_plain_value(value: object) -> float | str | None:
    return value if value is None or isinstance(value, (float, str)) else str(value)


def _render_trials(view: PageView, sweep_view: SweepView) -> Html:
    t = view.t
    if not sweep_view.trials:
        return h.p(t("sweeps.no_trials"), class_="soft")
    param_names = sorted({key for trial in sweep_view.trials for key in trial.params})[:20]
    rows = [
        _make_trial_row(view, trial, param_names, is_best=trial.number == sweep_view.best)
        for trial in sweep_view.trials[:_MAX_TRIALS]
    ]
    number_columns = [
        components.ColumnHeader(name, "n")
        for name in (h.bdi(sweep_view.metric), t("sweeps.step"), *map(h.bdi, param_names))
    ]
    headers: list[components.ColumnHeader | str] = [
        components.ColumnHeader(t("sweeps.number"), "n"),
        t("console.state"),
        *number_columns,
        t("console.job"),
        t("console.note"),
    ]
    truncation_note = (
        h.p(t("sweeps.first_trials", n=_MAX_TRIALS), class_="soft") if len(sweep_view.trials) > _MAX_TRIALS else EMPTY
    )
    return join_html(components.table(view, headers, rows, t("sweeps.trials")), truncation_note)


def _make_trial_row(view: PageView, trial: TrialView, param_names: list[str], *, is_best: bool) -> components.TableRow:
    best_mark = (
        h.span("★", title=view.t("sweeps.best"), role="img", aria_label=view.t("sweeps.best")) if is_best else EMPTY
    )
    values = [h.bdi(str(trial.params.get(key, ""))) for key in param_names]
    number_cell = join_html(best_mark, " ", h.a(view.number(trial.number), href=build_resource_url(trial.run)))
    return components.TableRow(
        (
            number_cell,
            components.badge(view, trial.state),
            view.number(trial.value),
            view.number(trial.step),
            *values,
            components.ref_link(view, trial.job, short=True),
            h.bdi(trial.note[:200]),
        ),
        f"trial-{trial.number}",
    )


ROUTES = (
    PageRoute("sweeps", render_sweeps_page, walk=("sweeps",)),
    PageRoute("sweeps/<ref>", render_sweep_page, walk=("sweeps/sweep:fraud/rates",)),
)
