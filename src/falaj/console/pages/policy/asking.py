"""Asking policy: why one may or may not, what it would need, and a past decision replayed bit for bit."""

import json

from falaj.console.markup import Html, h, join
from falaj.console.page import Page, address
from falaj.console.parts import Field, badge, card, empty, facts, filters, notice
from falaj.console.view import View
from falaj.govern.people_records import Explanation


def explain(view: View) -> Page:
    """For oneself; for others where the reader may test; or for what the log remembers."""
    t = view.t
    form = filters(view, (
        Field("what", t("policy.what"), required=True),
        Field("ref", t("policy.ref")),
        Field("who", t("policy.who")),
    ))  # fmt: skip
    body = view.part(lambda: _answer(view)) if view.query("what") else empty(
        view, t("policy.ask"), t("policy.ask_hint"), "falaj policy explain catalog.promote --ref model:fraud/scorer"
    )  # fmt: skip
    return Page(t("policy.explain"), join(form, body))


def _answer(view: View) -> Html:
    t, what, ref, who = view.t, view.query("what"), view.query("ref"), view.query("who")
    desk = view.here.policy
    told: Explanation = desk.test(who, what, ref) if who and who != view.actor.id else desk.explain(what, ref)
    verdict = t("policy.allowed") if told.allowed else t("policy.denied")
    foreign = view.lang != "en"
    body = join(
        notice("good" if told.allowed else "bad", join(verdict, " ", _why(view, told)), "" if foreign else told.hint),
        _replayed(view, told) if told.logged else None,
        facts([
            (t("policy.action"), h.code(told.action, dir="ltr")),
            (t("policy.of"), h.bdi(who) if who else ""),
            (t("policy.rules"), join([_rule(one) for one in told.rules])),
            (t("policy.digest"), h.code(told.policy, dir="ltr")),
        ]),
    )  # fmt: skip
    known = h.details(h.summary(t("policy.facts")), h.pre(_pretty(told.facts), tabindex="0"))
    return card(t("policy.answer"), body, known)


def _why(view: View, told: Explanation) -> Html:
    return view.english(told.reason) if told.allowed or view.lang == "en" else view.why_not(told)


def _replayed(view: View, told: Explanation) -> Html:
    """The same answer again proves that neither the log nor the policy of that day was changed."""
    t = view.t
    event = h.a(h.bdi(told.logged), href=address(f"audit/event/{told.logged}"))
    kind, words = ("good", t("policy.same")) if told.same else ("bad", t("policy.differs"))
    return notice(kind, join(badge(view, "ok" if told.same else "alarm"), " ", words), event)


def _rule(name: str) -> Html:
    """Decisions also name what is no rule, such as that no role allowed it."""
    if name.startswith("no-"):
        return h.span(h.bdi(name), class_="tag")
    return h.a(h.bdi(name, class_="tag"), href=address(f"policy/policy:policies/{name}"))


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
