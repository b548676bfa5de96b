"""Asking policy: why one may or may not, what it would need, and a past decision replayed bit for bit."""

import json

from falaj.console.components import FormField, badge, card, empty_state, fact_list, filter_form, notice
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.govern.people_records import DecisionExplanation


def render_explain_page(view: PageView) -> Page:
    """For oneself; for others where the reader may test; or for what the log remembers."""
    t = view.t
    question_form = filter_form(
        view,
        (
            FormField("what", t("policy.what"), required=True),
            FormField("ref", t("policy.ref")),
            FormField("who", t("policy.who")),
        ),
    )
    body = (
        view.part(lambda: _render_answer(view))
        if view.query("what")
        else empty_state(
            view, t("policy.ask"), t("policy.ask_hint"), "falaj policy explain catalog.promote --ref model:fraud/scorer"
        )
    )
    return Page(t("policy.explain"), join_html(question_form, body))


def _render_answer(view: PageView) -> Html:
    t, action_name, resource, principal = view.t, view.query("what"), view.query("ref"), view.query("who")
    policy_service = view.here.policy
    explanation: DecisionExplanation = (
        policy_service.test(principal, action_name, resource)
        if principal and principal != view.actor.id
        else policy_service.explain(action_name, resource)
    )
    verdict_text = t("policy.allowed") if explanation.allowed else t("policy.denied")
    is_foreign = view.lang != "en"
    body = join_html(
        notice(
            "good" if explanation.allowed else "bad",
            join_html(verdict_text, " ", _explain_answer(view, explanation)),
            "" if is_foreign else explanation.hint,
        ),
        _render_replay(view, explanation) if explanation.logged else None,
        fact_list(
            [
                (t("policy.action"), h.code(explanation.action, dir="ltr")),
                (t("policy.of"), h.bdi(principal) if principal else ""),
                (t("policy.rules"), join_html([_render_rule_link(rule_name) for rule_name in explanation.rules])),
                (t("policy.digest"), h.code(explanation.policy, dir="ltr")),
            ]
        ),
    )
    facts_details = h.details(h.summary(t("policy.facts")), h.pre(_format_json(explanation.facts), tabindex="0"))
    return card(t("policy.answer"), body, facts_details)


def _explain_answer(view: PageView, explanation: DecisionExplanation) -> Html:
    return view.english(explanation.reason) if explanation.allowed or view.lang == "en" else view.why_not(explanation)


def _render_replay(view: PageView, explanation: DecisionExplanation) -> Html:
    """The same answer again proves that neither the log nor the policy of that day was changed."""
    t = view.t
    event = h.a(h.bdi(explanation.logged), href=build_url(f"audit/event/{explanation.logged}"))
    notice_kind, verdict_text = ("good", t("policy.same")) if explanation.same else ("bad", t("policy.differs"))
    return notice(notice_kind, join_html(badge(view, "ok" if explanation.same else "alarm"), " ", verdict_text), event)


def _render_rule_link(name: str) -> Html:
    """Decisions also name what is no rule, such as that no role allowed it."""
    if name.startswith("no-"):
        return h.span(h.bdi(name), class_="tag")
    return h.a(h.bdi(name, class_="tag"), href=build_url(f"policy/policy:policies/{name}"))


def _format_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
