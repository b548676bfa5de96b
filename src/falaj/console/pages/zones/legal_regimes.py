"""Regimes: laws as data, and how far each was checked; and whether a thing may go somewhere under them."""

from itertools import zip_longest

from falaj.console.components import FormField, TableRow, card, empty_state, fact_list, filter_form, notice, table, tag
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.govern.legal_calendars import Calendar
from falaj.govern.legal_periods import AT_ONCE, DutyDeadline, LegalCitation
from falaj.govern.records import LegalRegime, ResidencyVerdict
from falaj.govern.residency_check import MOVEMENT_OPERATIONS

_PERIOD_MESSAGES = {
    "hours": "zones.period_hours",
    "days": "zones.period_days",
    "working-days": "zones.period_working_days",
    "months": "zones.period_months",
    "years": "zones.period_years",
}


def render_regimes_page(view: PageView) -> Page:
    """Every law the house knows."""
    t = view.t
    columns = (
        t("zones.regime"),
        t("console.title"),
        t("zones.abroad"),
        t("zones.home"),
        t("zones.checked"),
        t("zones.review_by"),
        t("console.state"),
    )
    rows = [
        TableRow(
            (
                h.a(h.bdi(law.id), href=build_url(f"zones/regimes/{law.id}")),
                h.bdi(law.title),
                t.of("zones.localisation", law.localisation),
                h.bdi(", ".join(law.home)),
                _render_check_level(view, law.checked),
                h.bdi(law.review_by),
                t.of("zones.law_state", law.status),
            ),
            id=law.id,
        )
        for law in view.here.zones.regimes()
    ]
    body = join_html(notice("warn", t("zones.not_advice")), table(view, columns, rows, t("zones.regimes")))
    return Page(t("zones.regimes"), body)


def render_regime_page(view: PageView) -> Page:
    """One law: its ways out, its deadlines, where this was read and how sure that is."""
    t, name = view.t, view.args["name"]
    law = next(
        (candidate for candidate in view.here.zones.regimes() if name in (candidate.id, *candidate.aliases)), None
    )
    if law is None:
        raise NotFound(f"there is no regime {name[:40]}", "see the list of regimes")
    unverified_notice = notice("warn", t("zones.unverified"), t.of("zones.checked_long", law.checked))
    body = join_html(
        h.p(h.bdi(law.title)),
        None if law.checked == "primary" else unverified_notice,
        card(
            t("console.details"),
            fact_list(
                [
                    (t("console.state"), t.of("zones.law_state", law.status)),
                    (t("console.version"), law.version),
                    (t("zones.effective"), h.bdi(law.effective_from)),
                    (t("zones.review_by"), h.bdi(law.review_by)),
                    (t("zones.checked"), _render_check_level(view, law.checked)),
                    (t("zones.reviewed"), h.bdi(f"{law.reviewed_by}, {law.reviewed_on}") if law.reviewed_on else ""),
                    (t("zones.abroad"), t.of("zones.localisation", law.localisation)),
                    (t("zones.home"), h.bdi(", ".join(law.home))),
                    (t("zones.clearable"), h.bdi(", ".join(law.clearable)) if law.clearable else ""),
                    (t("zones.adequate"), h.bdi(", ".join(law.adequate)) if law.adequate else ""),
                    (t("zones.least_kept"), _render_retention(view, law)),
                ]
            ),
        ),
        card(t("zones.bases"), _render_bases(view, law)),
        card(t("zones.citations"), _citations(view, law)) if law.citations else None,
        card(t("zones.timers"), _render_deadlines(view, law)) if law.deadlines else None,
        card(t("zones.calendar"), _render_calendar(view, law.calendar)),
        card(t("zones.exemptions"), _render_exemptions(view, law)) if law.exemptions else None,
        card(t("zones.special_categories"), _render_tags(law.special_categories)) if law.special_categories else None,
        card(t("zones.record_contents"), _render_text_list(law.record_contents)) if law.record_contents else None,
        card(t("zones.sources"), _render_text_list(law.sources)),
        card(t("zones.notes"), _render_text_list(law.notes)) if law.notes else None,
    )
    return Page(h.bdi(law.id), body, ((t("zones.regimes"), build_url("zones/regimes")),))


def render_residency_check_page(view: PageView) -> Page:
    """May this go there? Every rule that forbids it, and what would allow it."""
    t = view.t
    zone_options = [(item.id, item.id) for item in view.here.zones.list()]
    operation_options = [(item, t.of("zones.op", item)) for item in sorted(MOVEMENT_OPERATIONS)]
    destination = view.query("abroad") or view.query("to")
    question_form = filter_form(
        view,
        (
            FormField("thing", t("zones.thing"), required=True),
            FormField("to", t("zones.to"), "select", options=zone_options),
            FormField("abroad", t("zones.or_abroad")),
            FormField("op", t("zones.to_do"), "select", "copy", operation_options),
            FormField("purpose", t("zones.what_for"), value=view.look.purpose),
        ),
    )
    resource_text = view.query("thing")
    answer = (
        view.part(lambda: _render_answer(view, resource_text, destination))
        if resource_text
        else empty_state(
            view, t("zones.ask"), t("zones.ask_hint"), "falaj zones check dataset:fraud/transactions@v3 eu-west"
        )
    )
    return Page(
        t("zones.may_it_go"), join_html(question_form, answer), live=("zones", "approvals") if resource_text else ()
    )


def _render_answer(view: PageView, resource_text: str, destination: str) -> Html:
    t, purpose = view.t, view.query("purpose", view.look.purpose)
    verdict: ResidencyVerdict = view.here.zones.check(resource_text, destination, view.query("op", "copy"), purpose)
    verdict_notice = notice(
        "good" if verdict.allowed else "bad", t("zones.it_may") if verdict.allowed else t("zones.it_may_not")
    )
    rows = [
        (h.code(rule or "", dir="ltr"), t.of("zones.rule", (rule or "").partition(":")[0]), h.bdi(reason or ""))
        for rule, reason in zip_longest(verdict.rules, verdict.reasons)
    ]
    headers = (t("zones.rule"), t("zones.means"), t("console.reason"))
    return join_html(
        verdict_notice,
        table(view, headers, rows, t("zones.rules_spoke")) if rows else None,
        card(t("zones.would_allow"), _render_hint(verdict), _render_propose_form(view, resource_text, destination))
        if verdict.hint
        else None,
        fact_list(
            [
                (t("zones.owed"), _render_tags(verdict.obligations)),
                (t("zones.grants_used"), join_html([_render_grant_link(grant_name) for grant_name in verdict.grants])),
            ]
        ),
    )


def _render_hint(verdict: ResidencyVerdict) -> Html:
    return h.p(verdict.hint, dir="auto")


def _render_propose_form(view: PageView, resource_text: str, destination: str) -> Html:
    unversioned_ref = str(Ref.parse(resource_text).bare)
    grant_values = {"dst": destination, "scope": unversioned_ref, "purpose": view.query("purpose", view.look.purpose)}
    return h.p(h.a(view.t("zones.propose"), href=build_url("zones/grants", grant_values), class_="button"))


def _render_grant_link(name: str) -> Html:
    return h.a(h.bdi(name), href=build_resource_url(Ref("grant", "zones", name)))


def _render_check_level(view: PageView, check_level: str) -> Html:
    badge_class = "good" if check_level == "primary" else "warn"
    return h.span(view.t.of("zones.checked", check_level), class_=f"badge {badge_class}")


def _render_retention(view: PageView, regime: LegalRegime) -> Html | str:
    """Return the period, the event it starts from and the article, or nothing where the law sets none."""
    if regime.retention is None:
        return ""
    t, retention = view.t, regime.retention
    period = t(_PERIOD_MESSAGES[retention.unit], n=retention.count)
    return join_html(period, " ", t.of("zones.starts", retention.starts), h.br(), h.bdi(retention.source.article))


def _render_bases(view: PageView, law: LegalRegime) -> Html:
    t = view.t
    if not law.bases:
        return h.p(t("zones.no_bases"), class_="soft")
    columns = (
        t("zones.basis"),
        t("console.title"),
        t("zones.documents"),
        t("zones.owed"),
        t("zones.checked"),
        t("zones.article"),
    )
    rows = [
        (
            h.bdi(basis.id),
            h.bdi(basis.title),
            _render_tags(basis.documents),
            _render_tags(basis.obligations),
            _render_check_level(view, basis.source.checked),
            _render_citation(basis.source),
        )
        for basis in law.bases.values()
    ]
    return table(view, columns, rows, t("zones.bases"))


def _citations(view: PageView, regime: LegalRegime) -> Html:
    """Return where the values that are plain words come from, and who read it when."""
    t = view.t
    columns = (t("zones.value"), t("zones.checked"), t("zones.article"), t("zones.reviewed"), t("console.note"))
    rows = [
        (
            t.of("zones.cited", name),
            _render_check_level(view, source.checked),
            _render_citation(source),
            h.bdi(f"{source.reviewed_by}, {source.reviewed_on}"),
            h.bdi(source.note),
        )
        for name, source in regime.citations.items()
    ]
    return table(view, columns, rows, t("zones.citations"))


def _render_deadlines(view: PageView, regime: LegalRegime) -> Html:
    t = view.t
    columns = (t("zones.timer"), t("zones.within"), t("zones.checked"), t("zones.article"), t("console.note"))
    rows = [
        (
            t.of("zones.timer", obligation),
            _render_period(view, deadline),
            _render_check_level(view, deadline.source.checked),
            _render_citation(deadline.source),
            h.bdi(deadline.source.note),
        )
        for obligation, deadline in regime.deadlines.items()
    ]
    return table(view, columns, rows, t("zones.timers"))


def _render_period(view: PageView, deadline: DutyDeadline) -> Html:
    """Return the period in words, with its extension and what stops it."""
    t = view.t
    if deadline.unit == AT_ONCE:
        return t("zones.period_at_once")
    unit_message = _PERIOD_MESSAGES[deadline.unit]
    phrases = [t(unit_message, n=deadline.count)]
    if deadline.extension:
        phrases.append(t("zones.extendable", period=t(unit_message, n=deadline.extension)))
    if deadline.ends_on_working_day:
        phrases.append(t("zones.ends_on_working_day"))
    phrases += [t.of("zones.stops_for", reason) for reason in deadline.stops_for]
    return h.ul([h.li(phrase) for phrase in phrases]) if len(phrases) > 1 else phrases[0]


def _render_citation(source: LegalCitation) -> Html:
    """Return article, quotation and address of a source. The console links to no other site: the address is text."""
    quotation = h.p(h.q(source.quote, dir="auto"), class_="soft") if source.quote else None
    return join_html(
        h.bdi(source.article), quotation, h.div(h.bdi(source.url), class_="soft small") if source.url else None
    )


def _render_exemptions(view: PageView, regime: LegalRegime) -> Html:
    t = view.t
    rows = [
        (
            h.span(exemption.because_ar if t.rtl else exemption.because, dir="auto"),
            _render_tags((*exemption.regimes, *exemption.categories, *exemption.controllers)),
            _render_check_level(view, exemption.source.checked),
            _render_citation(exemption.source),
        )
        for exemption in regime.exemptions
    ]
    columns = (t("zones.not_applicable_because"), t("zones.exempt_when"), t("zones.checked"), t("zones.article"))
    return table(view, columns, rows, t("zones.exemptions"))


def _render_calendar(view: PageView, calendar: Calendar) -> Html:
    t = view.t
    days = [t.of("zones.weekday", str(day)) for day in calendar.weekend]
    return fact_list(
        [
            (t("zones.calendar"), h.bdi(calendar.id)),
            (t("zones.timezone"), h.bdi(calendar.timezone)),
            (
                t("zones.weekend"),
                join_html(*[join_html(", ", day) if day_index else day for day_index, day in enumerate(days)]),
            ),
            (t("zones.holidays"), h.bdi(", ".join(calendar.holidays))),
        ]
    )


def _render_text_list(texts: tuple[str, ...]) -> Html:
    return h.ul([h.li(h.bdi(line_text)) for line_text in texts])


def _render_tags(values: tuple[str, ...]) -> Html:
    return join_html([tag(value) for value in values])
