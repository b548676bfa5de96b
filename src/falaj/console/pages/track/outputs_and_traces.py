"""Beside runs: the models that they logged, and traces of programs."""

from collections.abc import Sequence

from falaj.console import components
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.track.run_files import render_files
from falaj.core.ref import Ref

_PAGE_SIZE = 50


def render_outputs(view: PageView, experiment: Ref) -> Html:
    """Models that runs of an experiment logged."""
    t = view.t
    output_page = view.here.outputs.list((experiment,), after=view.query("page"), limit=_PAGE_SIZE)
    if not output_page.outputs:
        return components.empty_state(view, t("track.no_models"), t("track.no_models_hint"))
    rows = [
        components.TableRow(
            (
                h.a(h.bdi(output_view.title), href=build_resource_url(output_view.ref)),
                h.bdi(output_view.type),
                components.badge(view, output_view.status),
                h.bdi(output_view.author),
                view.ago(output_view.made_at),
            ),
            str(output_view.ref),
        )
        for output_view in output_page.outputs
    ]
    headers = (t("console.model"), t("console.kind"), t("console.state"), t("console.by"), t("console.made"))
    return join_html(components.table(view, headers, rows, t("track.models")), components.pager(view, output_page.next))


def render_traces(view: PageView, experiment: Ref) -> Html:
    """What programs did, the newest first."""
    t = view.t
    trace_page = view.here.traces.list(experiment, after=view.query("page"), limit=_PAGE_SIZE)
    if not trace_page.traces:
        return components.empty_state(view, t("track.no_traces"), t("track.no_traces_hint"))
    rows = [
        components.TableRow(
            (
                h.a(h.code(trace_view.ref.name, dir="ltr"), href=build_resource_url(trace_view.ref)),
                components.badge(view, trace_view.status),
                view.when(trace_view.started),
                view.duration(trace_view.lasted_s),
                h.bdi(trace_view.request[:80]),
            ),
            str(trace_view.ref),
        )
        for trace_view in trace_page.traces
    ]
    headers = (t("track.trace"), t("console.state"), t("console.when"), t("console.took"), t("track.request"))
    return join_html(components.table(view, headers, rows, t("track.traces")), components.pager(view, trace_page.next))


def render_output_page(view: PageView, ref: Ref) -> Page:
    """A model that a run logged."""
    t, output_view = view.t, view.here.outputs.show(ref)
    source_run = Ref("run", ref.project, output_view.run) if output_view.run else None
    output_facts = components.fact_list(
        [
            (t("console.state"), components.badge(view, output_view.status)),
            (t("console.kind"), h.bdi(output_view.type)),
            (t("track.run"), components.ref_link(view, source_run, short=True) if source_run else ""),
            (t("console.by"), h.bdi(output_view.author)),
            (t("console.made"), view.when(output_view.made_at)),
        ]
    )
    metric_facts = [(h.bdi(metric.point.key), view.number(metric.point.number)) for metric in output_view.metrics]
    param_facts = [(h.bdi(key), h.bdi(value)) for key, value in output_view.params.items()]
    body = join_html(
        components.card_grid(
            components.card(t("console.overview"), output_facts),
            *_render_fact_card(t("track.metrics"), metric_facts),
            *_render_fact_card(t("track.params"), param_facts),
        ),
        view.part(lambda: render_files(view, output_view.ref)),
    )
    return Page(h.bdi(output_view.title), body, _make_breadcrumbs(output_view.experiment), live=("outputs",))


def render_trace_page(view: PageView, ref: Ref) -> Page:
    """One trace: what came in, what went out, and its spans as files."""
    t, trace_view = view.t, view.here.traces.show(ref)
    trace_facts = components.fact_list(
        [
            (t("console.state"), components.badge(view, trace_view.status)),
            (t("console.when"), view.when(trace_view.started)),
            (t("console.took"), view.duration(trace_view.lasted_s)),
            (t("console.by"), h.bdi(trace_view.author)),
        ]
    )
    messages = [(t("track.request"), trace_view.request), (t("track.response"), trace_view.response)]
    message_cards = [
        components.card(name, h.pre(h.code(message_text[:20_000]), tabindex="0"))
        for name, message_text in messages
        if message_text
    ]
    tag_facts = [(h.bdi(key), h.bdi(value[:300])) for key, value in {**trace_view.facts, **trace_view.tags}.items()]
    body = join_html(
        components.card_grid(
            components.card(t("console.overview"), trace_facts),
            *message_cards,
            *_render_fact_card(t("console.details"), tag_facts),
        ),
        view.part(lambda: render_files(view, trace_view.ref)),
    )
    return Page(h.code(ref.name, dir="ltr"), body, _make_breadcrumbs(trace_view.experiment), live=("traces",))


def _make_breadcrumbs(experiment: Ref) -> tuple[tuple[Html, str], ...]:
    return ((h.bdi(experiment.name), build_url(f"track/{experiment}")),)


def _render_fact_card(title: str | Html, card_facts: Sequence[tuple[str | Html, Html]]) -> list[Html]:
    return [components.card(title, components.fact_list(card_facts))] if card_facts else []
