"""One run: what it was told, what it used and made, what it measured, and its files."""

from collections.abc import Mapping, Sequence

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.track import run_curves
from falaj.console.pages.track.note_markup import NOTE_TAG, render_note
from falaj.console.pages.track.run_files import render_files
from falaj.console.plots import LineSeries, line_chart, sparkline
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.track.records import Run, UsedData

_MAX_ROWS, _MAX_SPARKLINES, _MAX_CURVES = 100, 12, 8
_SYSTEM_PREFIXES = ("mlflow.source", "mlflow.user", "system.")


def render_run_page(view: PageView, ref: Ref) -> Page:
    """A run, in the part that was asked for."""
    t, run_record = view.t, view.here.track.show(ref)
    tab_labels = (("overview", t("console.overview")), ("curves", t("track.curves")), ("files", t("console.files")))
    current_tab = view.query("tab", "overview")
    if current_tab == "curves":
        body = _render_curves(view, run_record)
    elif current_tab == "files":
        body = view.part(lambda: render_files(view, run_record.ref))
    else:
        body = _render_overview(view, run_record)
    deleted_notice = components.notice("warn", t("track.is_deleted")) if run_record.state != "active" else EMPTY
    crumbs = ((h.bdi(run_record.experiment.name), build_url(f"track/{run_record.experiment}")),)
    toolbar = h.div(components.badge(view, run_record.status), _render_actions(view, run_record), class_="grid-bar")
    return Page(
        h.bdi(run_record.title),
        join_html(deleted_notice, toolbar, components.tabs(view, tab_labels), body),
        crumbs,
        live=("track",),
        scripts=("plots.js",),
        every_s=5.0 if run_record.status == "running" else 0.0,
    )


def _render_actions(view: PageView, run_record: Run) -> Html:
    t = view.t
    if run_record.state != "active":
        return components.action_button(
            view, "track", "restore", {"name": run_record.ref}, t("track.restore"), primary=True
        )
    status_options = [(status, t.of("console.state", status)) for status in ("finished", "failed", "killed")]
    end_button = components.action_button(
        view,
        "track",
        "end",
        {"run": run_record.ref},
        t("track.end"),
        (FormField("status", t("console.state"), "select", options=status_options),),
    )
    fields = (
        FormField("path", t("track.model_path"), hint=t("track.model_path_hint")),
        FormField("model", t("console.model"), value=f"model:{run_record.ref.project}/", required=True),
        FormField("message", t("console.note")),
    )
    return h.div(
        end_button if run_record.status in ("running", "scheduled") else None,
        components.action_button(
            view, "track", "register", {"run": run_record.ref, "path": ""}, t("track.register"), fields
        ),
        components.action_button(
            view,
            "track",
            "attach",
            {"run": run_record.ref},
            t("track.attach"),
            (
                FormField("path", t("track.path"), value="notes.md", required=True),
                FormField("data", t("track.text"), "textarea", required=True),
            ),
        ),
        components.action_button(
            view,
            "track",
            "delete",
            {"name": run_record.ref},
            t("console.delete"),
            danger=True,
            confirm=t("track.delete_hint"),
        ),
        class_="actions",
    )


def _render_overview(view: PageView, run_record: Run) -> Html:
    t = view.t
    run_facts = components.fact_list(
        [
            (t("console.name"), h.code(run_record.ref, dir="ltr")),
            (t("console.by"), h.bdi(run_record.author)),
            (t("console.started"), view.when(run_record.started)),
            (t("console.ended"), view.when(run_record.ended)),
            (t("console.took"), view.duration((run_record.ended or view.now) - run_record.started)),
            (t("console.zone"), h.bdi(run_record.zone)),
            (t("console.label"), h.bdi(run_record.label.words)),
            (t("console.job"), _render_job_link(view, run_record.tags.get("job", ""))),
        ]
    )
    note_text = run_record.tags.get(NOTE_TAG, "")
    system_tags = {key: value for key, value in run_record.tags.items() if key.startswith(_SYSTEM_PREFIXES)}
    own_tags = {key: value for key, value in run_record.tags.items() if key not in system_tags and key != NOTE_TAG}
    return join_html(
        components.card_grid(
            components.card(t("console.overview"), run_facts, wide=True),
            *_render_tag_card(t("console.tags"), own_tags),
            *_render_tag_card(t("track.system"), system_tags),
            *([components.card(t("console.note"), render_note(note_text))] if note_text else []),
        ),
        _render_metrics(view, run_record),
        _render_params(view, run_record),
        _render_used_data(view, run_record.inputs, run_record),
    )


def _render_metrics(view: PageView, run_record: Run) -> Html:
    """The newest of each metric; of the first ones how they went."""
    t, search_text = view.t, view.query("q").casefold()
    metric_names = [key for key in sorted(run_record.metrics) if search_text in key.casefold()]
    if not run_record.metrics:
        return components.card(t("track.metrics"), h.p(t("track.no_metrics"), class_="soft"))
    rows, sparkline_by_metric = [], _render_sparklines(view, run_record, metric_names)
    for key in metric_names[:_MAX_ROWS]:
        metric = run_record.metrics[key]
        link = h.a(h.bdi(key), href=view.link(tab="curves", metric=key, q=""))
        rows.append(
            (
                link,
                sparkline_by_metric.get(key, EMPTY),
                view.number(metric.number),
                view.number(metric.step),
                view.when(metric.at),
            )
        )
    number_columns = [components.ColumnHeader(name, "n") for name in (t("console.value"), t("track.step"))]
    headers: tuple[components.ColumnHeader | str, ...] = (
        t("track.metric"),
        t("track.went"),
        *number_columns,
        t("console.when"),
    )
    search_form = (
        components.filter_form(view, (FormField("q", t("track.name_has")),))
        if len(run_record.metrics) > _MAX_SPARKLINES
        else EMPTY
    )
    truncation_note = (
        h.p(t("track.more_metrics", n=len(metric_names) - _MAX_ROWS), class_="soft")
        if len(metric_names) > _MAX_ROWS
        else EMPTY
    )
    return components.card(
        t("track.metrics"), search_form, components.table(view, headers, rows, t("track.metrics")), truncation_note
    )


def _render_sparklines(view: PageView, run_record: Run, metric_names: Sequence[str]) -> dict[str, Html]:
    """Small curves of the first metrics, asked for together."""
    metric_curves = view.here.track.curves((run_record.ref,), tuple(metric_names[:_MAX_SPARKLINES]), bins=30)
    values_by_metric = [
        (metric_curve.curve.key, [None if point.odd else point.value for point in metric_curve.curve.points])
        for metric_curve in metric_curves
    ]
    return {key: sparkline(view, values, title=key) for key, values in values_by_metric}


def _render_params(view: PageView, run_record: Run) -> Html:
    if not run_record.params:
        return EMPTY
    rows = [(h.bdi(key), h.bdi(value[:500])) for key, value in sorted(run_record.params.items())[:500]]
    headers = (view.t("track.param"), view.t("console.value"))
    return components.card(view.t("track.params"), components.table(view, headers, rows, view.t("track.params")))


def _render_used_data(view: PageView, used_data: tuple[UsedData, ...], run_record: Run) -> Html:
    t = view.t
    rows = [
        (
            t("track.input"),
            h.bdi(item.name),
            components.ref_link(view, item.ref) if item.ref else h.bdi(item.source[:200]),
            h.code(item.digest[:20], dir="ltr"),
        )
        for item in used_data[:100]
    ]
    rows += [
        (
            t("track.output"),
            h.bdi(item.id),
            components.ref_link(view, Ref("output", run_record.ref.project, item.id)),
            EMPTY,
        )
        for item in run_record.outputs[:100]
    ]
    if not rows:
        return EMPTY
    headers = (t("console.kind"), t("console.name"), t("track.what"), t("track.digest"))
    return components.card(t("track.used"), components.table(view, headers, rows, t("track.used")))


def _render_curves(view: PageView, run_record: Run) -> Html:
    """One metric large, or those with which the run is first known."""
    t, metric_names = view.t, sorted(run_record.metrics)
    if not metric_names:
        return components.empty_state(
            view, t("track.no_metrics"), t("track.no_metrics_hint"), f"falaj track log {run_record.ref}"
        )
    chosen_metric = view.query("metric") if view.query("metric") in run_record.metrics else ""
    shown_metrics = [chosen_metric] if chosen_metric else metric_names[:_MAX_CURVES]
    charts = [
        _render_curve(view, item, 420 if chosen_metric else 240)
        for item in run_curves.load_series(view, (run_record.ref,), shown_metrics)
    ]
    chart_grid = h.div(
        [h.div(item, class_="card") for item in charts],
        class_=None if chosen_metric else "cards",
        data_refetch=True if chosen_metric else None,
    )
    return join_html(
        run_curves.render_choices(view, ["", *metric_names[:500]], chosen_metric),
        run_curves.render_reset_link(view) if chosen_metric else None,
        chart_grid,
    )


def _render_tag_card(title: str | Html, tags: Mapping[str, str]) -> list[Html]:
    shown_tags = [(h.bdi(key), h.bdi(value[:300])) for key, value in list(tags.items())[:50]]
    return [components.card(title, components.fact_list(shown_tags))] if shown_tags else []


def _render_curve(view: PageView, series: LineSeries, height: int) -> Html:
    return line_chart(
        view,
        [series],
        title=series.name,
        x=run_curves.get_axis_title(view),
        log_y=view.query("log") == "1",
        height=height,
    )


def _render_job_link(view: PageView, job_text: str) -> Html:
    """The job that the run is of; the tag is anybody's to write."""
    try:
        return components.ref_link(view, job_text) if job_text.startswith("job:") else EMPTY
    except Invalid:
        return EMPTY
