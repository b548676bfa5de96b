"""A gate: every rule with what was found, who was asked and who answered, the figures beside those of the one there."""

import math
from collections.abc import Mapping

from falaj.catalog.lifecycle_records import PromotionResult
from falaj.catalog.records import CatalogVersion
from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import build_resource_url
from falaj.console.page_view import PageView
from falaj.core.ref import Ref
from falaj.govern.records import ApprovalState

_GATED_STAGES = ("production", "staging", "retired")
_PEOPLE_RULE_SUFFIXES = (" approval", " approvals", " dpo")


def render_gates(view: PageView, version: CatalogVersion) -> Html:
    """A card for each stage it could go to, the most important first."""
    rules_by_stage = {
        stage_rules.stage: stage_rules.rules for stage_rules in view.here.catalog.rules(version.ref.project)
    }
    shown_stages = [
        stage
        for stage in _GATED_STAGES
        if stage != version.stage and (stage != "retired" or version.stage == "production")
    ]
    return join_html([_render_gate(view, version, stage, rules_by_stage.get(stage, ())) for stage in shown_stages])


def _render_gate(view: PageView, version: CatalogVersion, stage: str, rules: tuple[str, ...]) -> Html:
    t = view.t
    heading = t("catalog.to_stage", stage=t.of("catalog.stage", stage))
    return components.card(
        heading, view.part(lambda: _render_judgement(view, version, stage, rules)), id=f"gate-{stage}"
    )


def _render_judgement(view: PageView, version: CatalogVersion, stage: str, rules: tuple[str, ...]) -> Html:
    promotion: PromotionResult = view.here.catalog.judge(version.ref, stage)
    approval_state: ApprovalState | None = view.here.approvals.show(promotion.approval) if promotion.approval else None
    return join_html(
        _render_standing(view, promotion, approval_state),
        _render_rules(view, (promotion, approval_state), rules),
        view.part(lambda: _render_figures(view, version, promotion))
        if promotion.before and promotion.before != version.ref
        else None,
        view.part(lambda: _render_serving(view, promotion)) if stage == "production" and promotion.before else None,
        h.div(_render_promote_button(view, promotion), class_="actions"),
    )


def _render_standing(view: PageView, promotion: PromotionResult, approval_state: ApprovalState | None) -> Html:
    """In one line: is it there, may it go there, whom does it wait for."""
    t = view.t
    if approval_state is not None and promotion.state in ("waiting", "emergency"):
        approval_link = h.a(t("catalog.see_approval"), href=build_resource_url(approval_state.ref.bare))
        if approval_state.standing.granted:
            return components.notice("good", t("catalog.agreed"), approval_link)
        until_text = t("catalog.asked_until", when=view.when(promotion.until)) if promotion.until else ""
        return components.notice(
            "warn", _describe_wait(view, promotion, approval_state), join_html(until_text, " ", approval_link)
        )
    if promotion.state == "refused":
        return components.notice("bad", t("catalog.gate_refuses"), t("catalog.gate_refuses_hint"))
    return components.notice("good", t.of("catalog.gate", promotion.state))


def _describe_wait(view: PageView, promotion: PromotionResult, approval_state: ApprovalState) -> Html:
    standing = approval_state.standing
    if promotion.state == "emergency" or standing.state != "waiting":
        return view.t("catalog.waits", why=promotion.why)
    officers_text = join_html(" ", view.t("catalog.waits_dpo", n=standing.missing_dpo)) if standing.missing_dpo else ""
    return join_html(view.t("catalog.waits_for", n=standing.missing), officers_text)


def _render_rules(
    view: PageView, promotion_and_approval: tuple[PromotionResult, ApprovalState | None], rules: tuple[str, ...]
) -> Html:
    promotion, approval_state = promotion_and_approval
    t, evidence_by_rule = view.t, {rule_evidence.rule: rule_evidence for rule_evidence in promotion.evidence}
    rows = []
    for rule in rules:
        if rule.endswith(_PEOPLE_RULE_SUFFIXES):
            rows.append(_make_people_row(view, promotion, approval_state, rule))
        elif rule in evidence_by_rule:
            mark_text = t("catalog.met") if evidence_by_rule[rule].passed else t("catalog.unmet")
            badge_class = "badge good" if evidence_by_rule[rule].passed else "badge bad"
            rows.append(
                TableRow(
                    (
                        h.span(mark_text, class_=badge_class),
                        h.code(rule, dir="ltr"),
                        h.span(evidence_by_rule[rule].found, dir="auto"),
                    )
                )
            )
    if not rows:
        return h.p(t("catalog.no_rules"), class_="soft")
    return components.table(view, (t("console.state"), t("catalog.rule"), t("catalog.found")), rows, t("catalog.rules"))


def _make_people_row(
    view: PageView, promotion: PromotionResult, approval_state: ApprovalState | None, rule: str
) -> TableRow:
    """A rule about people, with what they said so far."""
    t = view.t
    if promotion.state == "done" or approval_state is None:
        badge_class, mark_text = (
            ("badge good", t("catalog.met")) if promotion.state == "done" else ("badge", t("catalog.to_ask"))
        )
        return TableRow((h.span(mark_text, class_=badge_class), h.code(rule, dir="ltr"), t("catalog.asks_people")))
    approver_names = [voice.actor for voice in approval_state.approval.voices if voice.says == "give"]
    is_enough = approval_state.standing.granted
    badge_class, mark_text = ("badge good", t("catalog.met")) if is_enough else ("badge wait", t("catalog.waiting"))
    progress_text = join_html(
        t("catalog.given", n=len(approver_names), needs=approval_state.approval.needs),
        " ",
        [h.bdi(approver_name, " ") for approver_name in approver_names],
    )
    return TableRow((h.span(mark_text, class_=badge_class), h.code(rule, dir="ltr"), progress_text))


def _render_figures(view: PageView, version: CatalogVersion, promotion: PromotionResult) -> Html:
    """What was measured of this one and of the one that is there."""
    t = view.t
    previous_version: CatalogVersion = view.here.catalog.show(promotion.before)
    rows = compare_metrics(
        version.card.metrics if version.card else {}, previous_version.card.metrics if previous_version.card else {}
    )
    if not rows:
        return EMPTY
    metric_rows = [
        TableRow(
            (
                h.bdi(metric),
                view.number(new_value),
                view.number(old_value),
                _render_difference(view, new_value, old_value),
            ),
            id=f"{promotion.stage}-{metric}",
        )
        for metric, new_value, old_value in rows
    ]
    headers = (
        t("catalog.metric"),
        ColumnHeader(h.bdi(version.ref.version), "n"),
        ColumnHeader(h.bdi(previous_version.ref.version), "n"),
        ColumnHeader(t("catalog.difference"), "n"),
    )
    return join_html(
        h.h3(t("catalog.against_now")), components.table(view, headers, metric_rows, t("catalog.against_now"))
    )


def compare_metrics(
    new_metrics: Mapping[str, float], old_metrics: Mapping[str, float]
) -> list[tuple[str, float | None, float | None]]:
    """Every figure that either has."""
    return [
        (name, new_metrics.get(name), old_metrics.get(name)) for name in dict.fromkeys([*new_metrics, *old_metrics])
    ][:50]


def _render_difference(view: PageView, new_value: float | None, old_value: float | None) -> Html:
    if new_value is None or old_value is None or not math.isfinite(new_value - old_value):
        return EMPTY
    sign = "+" if new_value > old_value else "-" if new_value < old_value else "="
    return h.bdi(sign, view.number(abs(new_value - old_value)) if new_value != old_value else "", dir="ltr")


def _render_serving(view: PageView, promotion: PromotionResult) -> Html:
    """How the one that is there does: which endpoints serve it, what their watches say, what is open."""
    t, project = view.t, promotion.ref.project
    endpoints = [
        endpoint
        for endpoint in view.here.serve.list(project=project, limit=200).endpoints
        if any(str(revision.model) == str(promotion.before) for revision in endpoint.revisions)
    ]
    if not endpoints:
        return EMPTY
    watch_by_endpoint = {str(endpoint.ref.bare): endpoint for endpoint in view.here.monitor.list(project=project)}
    incidents = view.here.monitor.incidents(project=project, state="open", limit=20)
    rows = []
    for endpoint in endpoints:
        watch = watch_by_endpoint.get(str(endpoint.ref.bare))
        incident_links = [
            components.ref_link(view, incident.ref, short=True)
            for incident in incidents
            if incident.endpoint.bare == endpoint.ref.bare
        ]
        watch_state = (
            h.a(t.of("catalog.watch", watch.state), href=_get_watch_url(endpoint.ref))
            if watch
            else t("catalog.unwatched")
        )
        rows.append(
            TableRow(
                (
                    components.ref_link(view, endpoint.ref, short=True),
                    t.of("catalog.serves", endpoint.state),
                    watch_state,
                    join_html(incident_links),
                )
            )
        )
    headers = (t("console.endpoint"), t("console.state"), t("catalog.drift"), t("catalog.incidents"))
    return join_html(
        h.h3(t("catalog.served_now", name=str(promotion.before))),
        components.table(view, headers, rows, t("console.endpoint")),
    )


def _get_watch_url(endpoint: Ref) -> str:
    return build_resource_url(Ref("watch", endpoint.project, endpoint.name))


def _render_promote_button(view: PageView, promotion: PromotionResult) -> Html:
    t, stage_name = view.t, view.t.of("catalog.stage", promotion.stage)
    other_stages = [stage for stage in ("retired", "staging", "experiment") if stage != promotion.stage]
    options = [("", t("catalog.as_usual")), *((stage, t.of("catalog.stage", stage)) for stage in other_stages)]
    fields = [FormField("reason", t("console.reason"), required=True)]
    if promotion.before and promotion.before != promotion.ref:
        fields.append(
            FormField("before", t("catalog.what_of_before", name=str(promotion.before)), "select", options=options)
        )
    if promotion.stage == "production":
        fields.append(FormField("emergency", t("catalog.emergency"), "checkbox", hint=t("catalog.emergency_hint")))
    label = t("catalog.promote_again") if promotion.state == "waiting" else t("catalog.promote", stage=stage_name)
    return components.action_button(
        view,
        "catalog",
        "promote",
        {"name": promotion.ref, "stage": promotion.stage},
        label,
        fields,
        primary=promotion.ok,
        confirm=t("catalog.promote_means"),
        id=f"promote-{promotion.stage}",
    )
