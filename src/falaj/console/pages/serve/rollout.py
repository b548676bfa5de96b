"""A roll-out and its verdict: the evidence so far, what decides, and how far it is from a decision."""

from math import log

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h
from falaj.console.pages.serve.acts import promote, rollback
from falaj.console.parts import Column, Row
from falaj.console.view import View
from falaj.console.writing import NOTHING
from falaj.serve.records import RUNNING, EndpointView, Judged, Rollout, VerdictView
from falaj.serve.trials import Plan, plan_in


def rollout(view: View, one: EndpointView) -> Html:
    """The roll-out that runs, or the one that was last."""
    trial = one.rollout
    if trial is None:
        return EMPTY
    t = view.t
    title = h.span(t.of("serve.kind", trial.kind), " ", parts.badge(view, trial.state))
    body = [h.p(trial.why, dir="auto")] if trial.why else []
    if trial.state != RUNNING:
        ended = h.p(t("serve.ended"), " ", view.when(trial.ended_at), class_="soft")
        return parts.card(title, body, ended, id="rollout")
    buttons = h.div(promote(view, one), rollback(view, one), class_="actions")
    return parts.card(title, body, view.part(lambda: _verdict(view, one, trial)), buttons, id="rollout")


def _verdict(view: View, one: EndpointView, trial: Rollout) -> Html:
    told: VerdictView = view.here.serve.verdict(one.ref)
    t, plan = view.t, plan_in(trial)
    if not trial.step_at:
        return h.p(t("serve.not_ready_yet"), class_="soft")
    decides = t("serve.decides_itself") if trial.judge else t("serve.decides_person")
    settled = parts.facts([
        (t("serve.steps"), _steps(view, told)), (t("serve.decides"), decides),
        (t("serve.slow_means"), view.duration(told.slow_ms / 1000) if told.slow_ms else t("serve.learning")),
        (t("serve.at_the_latest"), view.when(trial.begun_at + plan.most_s) if trial.judge else ""),
    ])  # fmt: skip
    heads = (
        t("serve.metric"), Column(t("serve.base"), "n"), Column(t("serve.tried"), "n"),
        Column(t("serve.difference"), "n"), Column(t("serve.margin"), "n"), t("serve.progress"), t("serve.verdict"),
    )  # fmt: skip
    rows = [_row(view, reading, plan) for reading in told.readings]
    small = h.p(t("serve.always_valid", n=plan.least, alpha=plan.alpha), class_="soft small")
    return h.div(settled, parts.table(view, heads, rows, t("serve.evidence")), small)


def _steps(view: View, told: VerdictView) -> Html:
    shown = [view.percent(share, 0) for share in told.steps]
    marked = [h.strong(one) if at == told.step else one for at, one in enumerate(shown)]
    return h.span(
        [(" ← " if view.rtl else " → ") if at else "", one] for at, one in enumerate([*marked, view.percent(1.0, 0)])
    )


def _row(view: View, one: Judged, plan: Plan) -> Row:
    t, share = view.t, progress(one, plan)
    known = one.n > 0 and one.base_n > 0
    bar = h.progress(value=f"{share:.3f}", max="1", aria_label=t("serve.progress"))
    between = h.bdi(f"{100 * one.low:+.2f} … {100 * one.high:+.2f}", dir="ltr") if known else NOTHING
    return Row(
        (
            t.of("serve.metric", one.metric), _rate(view, one.base_rate, one.base_n), _rate(view, one.rate, one.n),
            between, view.percent(one.margin), h.div(bar, h.small(view.percent(share, 0), class_="soft")),
            h.span(t.of("serve.said", one.verdict), class_=f"badge {_TONES.get(one.verdict, '')}".strip(),
                   data_verdict=one.verdict),
        ),
        id=f"reading-{one.metric}",
    )  # fmt: skip


_TONES = {"worse": "bad", "fine": "good"}


def _rate(view: View, rate: float, n: float) -> Html:
    return h.div(view.percent(rate, 2), h.br(), h.small(view.t("serve.of_n", n=int(n)), class_="soft"))


def progress(one: Judged, plan: Plan) -> float:
    """How far a metric is from its verdict: the lesser of outcomes seen and evidence gathered, as a share of one."""
    if one.verdict != "wait":
        return 1.0
    looks = max(1, len(plan.metrics) * len(plan.steps))
    worse = _evidence(one.p_worse, plan.alpha / looks) * min(1.0, one.base_n / plan.least)
    fine = _evidence(one.p_fine, plan.alpha) * min(1.0, one.base_n / plan.least, one.n / plan.least)
    return min(0.99, max(worse, fine))


def _evidence(p: float, wanted: float) -> float:
    return min(1.0, max(0.0, log(max(p, 1e-300)) / log(wanted)))
