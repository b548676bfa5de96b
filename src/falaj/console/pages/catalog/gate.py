"""A gate: every rule with what was found, who was asked and who answered, the figures beside those of the one there."""

import math
from collections.abc import Mapping

from falaj.catalog.life_records import Promotion
from falaj.catalog.records import Version
from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import href
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.govern.records import ApprovalState

_STAGES = ("production", "staging", "retired")
_PEOPLE = (" approval", " approvals", " dpo")


def gates(view: View, version: Version) -> Html:
    """A card for each stage it could go to, the most important first."""
    rules = {one.stage: one.rules for one in view.here.catalog.rules(version.ref.project)}
    shown = [
        stage for stage in _STAGES if stage != version.stage and (stage != "retired" or version.stage == "production")
    ]
    return join([_gate(view, version, stage, rules.get(stage, ())) for stage in shown])


def _gate(view: View, version: Version, stage: str, rules: tuple[str, ...]) -> Html:
    t = view.t
    heading = t("catalog.to_stage", stage=t.of("catalog.stage", stage))
    return parts.card(heading, view.part(lambda: _judged(view, version, stage, rules)), id=f"gate-{stage}")


def _judged(view: View, version: Version, stage: str, rules: tuple[str, ...]) -> Html:
    told: Promotion = view.here.catalog.judge(version.ref, stage)
    asked: ApprovalState | None = view.here.approvals.show(told.approval) if told.approval else None
    return join(
        _standing(view, told, asked),
        _rules(view, (told, asked), rules),
        view.part(lambda: _figures(view, version, told)) if told.before and told.before != version.ref else None,
        view.part(lambda: _live(view, told)) if stage == "production" and told.before else None,
        h.div(_promote(view, told), class_="actions"),
    )


def _standing(view: View, told: Promotion, asked: ApprovalState | None) -> Html:
    """In one line: is it there, may it go there, whom does it wait for."""
    t = view.t
    if asked is not None and told.state in ("waiting", "emergency"):
        link = h.a(t("catalog.see_approval"), href=href(asked.ref.bare))
        if asked.standing.granted:
            return parts.notice("good", t("catalog.agreed"), link)
        until = t("catalog.asked_until", when=view.when(told.until)) if told.until else ""
        return parts.notice("warn", _waits(view, told, asked), join(until, " ", link))
    if told.state == "refused":
        return parts.notice("bad", t("catalog.gate_refuses"), t("catalog.gate_refuses_hint"))
    return parts.notice("good", t.of("catalog.gate", told.state))


def _waits(view: View, told: Promotion, asked: ApprovalState) -> Html:
    stands = asked.standing
    if told.state == "emergency" or stands.state != "waiting":
        return view.t("catalog.waits", why=told.why)
    officers = join(" ", view.t("catalog.waits_dpo", n=stands.missing_dpo)) if stands.missing_dpo else ""
    return join(view.t("catalog.waits_for", n=stands.missing), officers)


def _rules(view: View, told_asked: tuple[Promotion, ApprovalState | None], rules: tuple[str, ...]) -> Html:
    told, asked = told_asked
    t, found = view.t, {one.rule: one for one in told.evidence}
    rows = []
    for rule in rules:
        if rule.endswith(_PEOPLE):
            rows.append(_people(view, told, asked, rule))
        elif rule in found:
            mark = t("catalog.met") if found[rule].passed else t("catalog.unmet")
            kind = "badge good" if found[rule].passed else "badge bad"
            rows.append(
                Row((h.span(mark, class_=kind), h.code(rule, dir="ltr"), h.span(found[rule].found, dir="auto")))
            )
    if not rows:
        return h.p(t("catalog.no_rules"), class_="soft")
    return parts.table(view, (t("console.state"), t("catalog.rule"), t("catalog.found")), rows, t("catalog.rules"))


def _people(view: View, told: Promotion, asked: ApprovalState | None, rule: str) -> Row:
    """A rule about people, with what they said so far."""
    t = view.t
    if told.state == "done" or asked is None:
        kind, mark = ("badge good", t("catalog.met")) if told.state == "done" else ("badge", t("catalog.to_ask"))
        return Row((h.span(mark, class_=kind), h.code(rule, dir="ltr"), t("catalog.asks_people")))
    given = [voice.actor for voice in asked.approval.voices if voice.says == "give"]
    enough = asked.standing.granted
    kind, mark = ("badge good", t("catalog.met")) if enough else ("badge wait", t("catalog.waiting"))
    said = join(t("catalog.given", n=len(given), needs=asked.approval.needs), " ", [h.bdi(one, " ") for one in given])
    return Row((h.span(mark, class_=kind), h.code(rule, dir="ltr"), said))


def _figures(view: View, version: Version, told: Promotion) -> Html:
    """What was measured of this one and of the one that is there."""
    t = view.t
    before: Version = view.here.catalog.show(told.before)
    rows = compared(version.card.metrics if version.card else {}, before.card.metrics if before.card else {})
    if not rows:
        return EMPTY
    made = [
        Row((h.bdi(name), view.number(new), view.number(old), _moved(view, new, old)), id=f"{told.stage}-{name}")
        for name, new, old in rows
    ]
    heads = (t("catalog.metric"), Column(h.bdi(version.ref.version), "n"), Column(h.bdi(before.ref.version), "n"),
             Column(t("catalog.difference"), "n"))  # fmt: skip
    return join(h.h3(t("catalog.against_now")), parts.table(view, heads, made, t("catalog.against_now")))


def compared(new: Mapping[str, float], old: Mapping[str, float]) -> list[tuple[str, float | None, float | None]]:
    """Every figure that either has."""
    return [(name, new.get(name), old.get(name)) for name in dict.fromkeys([*new, *old])][:50]


def _moved(view: View, new: float | None, old: float | None) -> Html:
    if new is None or old is None or not math.isfinite(new - old):
        return EMPTY
    sign = "+" if new > old else "-" if new < old else "="
    return h.bdi(sign, view.number(abs(new - old)) if new != old else "", dir="ltr")


def _live(view: View, told: Promotion) -> Html:
    """How the one that is there does: which endpoints serve it, what their watches say, what is open."""
    t, project = view.t, told.ref.project
    serving = [
        one for one in view.here.serve.list(project=project, limit=200).endpoints
        if any(str(part.model) == str(told.before) for part in one.revisions)
    ]  # fmt: skip
    if not serving:
        return EMPTY
    watches = {str(one.ref.bare): one for one in view.here.monitor.list(project=project)}
    troubles = view.here.monitor.incidents(project=project, state="open", limit=20)
    rows = []
    for one in serving:
        watch = watches.get(str(one.ref.bare))
        found = [parts.ref(view, each.ref, short=True) for each in troubles if each.endpoint.bare == one.ref.bare]
        drift = h.a(t.of("catalog.watch", watch.state), href=_watch(one.ref)) if watch else t("catalog.unwatched")
        rows.append(Row((parts.ref(view, one.ref, short=True), t.of("catalog.serves", one.state), drift, join(found))))
    heads = (t("console.endpoint"), t("console.state"), t("catalog.drift"), t("catalog.incidents"))
    return join(
        h.h3(t("catalog.served_now", name=str(told.before))), parts.table(view, heads, rows, t("console.endpoint"))
    )


def _watch(endpoint: Ref) -> str:
    return href(Ref("watch", endpoint.project, endpoint.name))


def _promote(view: View, told: Promotion) -> Html:
    t, name = view.t, view.t.of("catalog.stage", told.stage)
    left = [one for one in ("retired", "staging", "experiment") if one != told.stage]
    options = [("", t("catalog.as_usual")), *((one, t.of("catalog.stage", one)) for one in left)]
    fields = [Field("reason", t("console.reason"), required=True)]
    if told.before and told.before != told.ref:
        fields.append(Field("before", t("catalog.what_of_before", name=str(told.before)), "select", options=options))
    if told.stage == "production":
        fields.append(Field("emergency", t("catalog.emergency"), "checkbox", hint=t("catalog.emergency_hint")))
    label = t("catalog.promote_again") if told.state == "waiting" else t("catalog.promote", stage=name)
    return parts.action(view, "catalog", "promote", {"name": told.ref, "stage": told.stage}, label, fields,
                        primary=told.ok, confirm=t("catalog.promote_means"), id=f"promote-{told.stage}")  # fmt: skip
