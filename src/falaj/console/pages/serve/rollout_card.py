"""A roll-out and its verdict: the evidence so far, what decides, and how far it is from a decision."""

from math import log

from falaj.console import components
from falaj.console.components import ColumnHeader, TableRow
from falaj.console.formatting import NO_VALUE
from falaj.console.markup import EMPTY, Html, h
from falaj.console.page_view import PageView
from falaj.console.pages.serve.endpoint_actions import render_promote_button, render_rollback_button
from falaj.serve.records import RUNNING, EndpointView, MetricJudgement, Rollout, VerdictView
from falaj.serve.rollout_state import TrialCriteria, read_criteria


def render_rollout(view: PageView, endpoint_view: EndpointView) -> Html:
    """The roll-out that runs, or the one that was last."""
    rollout_view = endpoint_view.rollout
    if rollout_view is None:
        return EMPTY
    t = view.t
    title = h.span(t.of("serve.kind", rollout_view.kind), " ", components.badge(view, rollout_view.state))
    body = [h.p(rollout_view.why, dir="auto")] if rollout_view.why else []
    if rollout_view.state != RUNNING:
        ended_line = h.p(t("serve.ended"), " ", view.when(rollout_view.ended_at), class_="soft")
        return components.card(title, body, ended_line, id="rollout")
    buttons = h.div(
        render_promote_button(view, endpoint_view), render_rollback_button(view, endpoint_view), class_="actions"
    )
    return components.card(
        title, body, view.part(lambda: _render_verdict(view, endpoint_view, rollout_view)), buttons, id="rollout"
    )


def _render_verdict(view: PageView, endpoint_view: EndpointView, rollout_view: Rollout) -> Html:
    verdict_view: VerdictView = view.here.serve.verdict(endpoint_view.ref)
    t, plan = view.t, read_criteria(rollout_view)
    if not rollout_view.step_at:
        return h.p(t("serve.not_ready_yet"), class_="soft")
    decided_by = t("serve.decides_itself") if rollout_view.judge else t("serve.decides_person")
    verdict_facts = components.fact_list(
        [
            (t("serve.steps"), _render_steps(view, verdict_view)),
            (t("serve.decides"), decided_by),
            (
                t("serve.slow_means"),
                view.duration(verdict_view.slow_ms / 1000) if verdict_view.slow_ms else t("serve.learning"),
            ),
            (t("serve.at_the_latest"), view.when(rollout_view.begun_at + plan.most_s) if rollout_view.judge else ""),
        ]
    )
    headers = (
        t("serve.metric"),
        ColumnHeader(t("serve.base"), "n"),
        ColumnHeader(t("serve.tried"), "n"),
        ColumnHeader(t("serve.difference"), "n"),
        ColumnHeader(t("serve.margin"), "n"),
        t("serve.progress"),
        t("serve.verdict"),
    )
    rows = [_make_row(view, reading, plan) for reading in verdict_view.readings]
    explanation = h.p(t("serve.always_valid", n=plan.least, alpha=plan.alpha), class_="soft small")
    return h.div(verdict_facts, components.table(view, headers, rows, t("serve.evidence")), explanation)


def _render_steps(view: PageView, verdict_view: VerdictView) -> Html:
    step_texts = [view.percent(share, 0) for share in verdict_view.steps]
    marked_steps = [
        h.strong(step_text) if step_index == verdict_view.step else step_text
        for step_index, step_text in enumerate(step_texts)
    ]
    return h.span(
        [(" ← " if view.rtl else " → ") if step_index else "", step_text]
        for step_index, step_text in enumerate([*marked_steps, view.percent(1.0, 0)])
    )


def _make_row(view: PageView, reading: MetricJudgement, plan: TrialCriteria) -> TableRow:
    t, progress_share = view.t, compute_progress(reading, plan)
    has_data = reading.n > 0 and reading.base_n > 0
    progress_bar = h.progress(value=f"{progress_share:.3f}", max="1", aria_label=t("serve.progress"))
    interval = h.bdi(f"{100 * reading.low:+.2f} … {100 * reading.high:+.2f}", dir="ltr") if has_data else NO_VALUE
    return TableRow(
        (
            t.of("serve.metric", reading.metric),
            _render_rate(view, reading.base_rate, reading.base_n),
            _render_rate(view, reading.rate, reading.n),
            interval,
            view.percent(reading.margin),
            h.div(progress_bar, h.small(view.percent(progress_share, 0), class_="soft")),
            h.span(
                t.of("serve.said", reading.verdict),
                class_=f"badge {_TONE_BY_VERDICT.get(reading.verdict, '')}".strip(),
                data_verdict=reading.verdict,
            ),
        ),
        id=f"reading-{reading.metric}",
    )


_TONE_BY_VERDICT = {"worse": "bad", "fine": "good"}


def _render_rate(view: PageView, rate: float, num_requests: float) -> Html:
    return h.div(view.percent(rate, 2), h.br(), h.small(view.t("serve.of_n", n=int(num_requests)), class_="soft"))


def compute_progress(reading: MetricJudgement, plan: TrialCriteria) -> float:
    """How far a metric is from its verdict: the lesser of outcomes seen and evidence gathered, as a share of one."""
    if reading.verdict != "wait":
        return 1.0
    num_looks = max(1, len(plan.metrics) * len(plan.steps))
    worse_evidence = _to_evidence(reading.p_worse, plan.alpha / num_looks) * min(1.0, reading.base_n / plan.least)
    fine_evidence = _to_evidence(reading.p_fine, plan.alpha) * min(
        1.0, reading.base_n / plan.least, reading.n / plan.least
    )
    return min(0.99, max(worse_evidence, fine_evidence))


def _to_evidence(p_value: float, threshold: float) -> float:
    return min(1.0, max(0.0, log(max(p_value, 1e-300)) / log(threshold)))
