"""Regimes: laws as data, and how far each was checked; and whether a thing may go somewhere under them."""

from itertools import zip_longest

from falaj.console.markup import Html, h, join
from falaj.console.page import Page, address, href
from falaj.console.parts import Field, Row, card, empty, facts, filters, notice, table, tag
from falaj.console.view import View
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.govern.legal_calendars import Calendar
from falaj.govern.legal_periods import AT_ONCE, Citation, Deadline
from falaj.govern.place import OPS
from falaj.govern.records import Regime, Verdict

_PERIODS = {
    "hours": "zones.period_hours",
    "days": "zones.period_days",
    "working-days": "zones.period_working_days",
    "months": "zones.period_months",
    "years": "zones.period_years",
}


def regimes(view: View) -> Page:
    """Every law the house knows."""
    t = view.t
    columns = (t("zones.regime"), t("console.title"), t("zones.abroad"), t("zones.home"),
               t("zones.checked"), t("zones.review_by"), t("console.state"))  # fmt: skip
    rows = [
        Row((h.a(h.bdi(one.id), href=address(f"zones/regimes/{one.id}")), h.bdi(one.title),
             t.of("zones.localisation", one.localisation), h.bdi(", ".join(one.home)), _checked(view, one.checked),
             h.bdi(one.review_by), t.of("zones.law_state", one.status)), id=one.id)
        for one in view.here.zones.regimes()
    ]  # fmt: skip
    body = join(notice("warn", t("zones.not_advice")), table(view, columns, rows, t("zones.regimes")))
    return Page(t("zones.regimes"), body)


def regime(view: View) -> Page:
    """One law: its ways out, its deadlines, where this was read and how sure that is."""
    t, name = view.t, view.args["name"]
    found = next((one for one in view.here.zones.regimes() if name in (one.id, *one.aliases)), None)
    if found is None:
        raise NotFound(f"there is no regime {name[:40]}", "see the list of regimes")
    doubt = notice("warn", t("zones.unverified"), t.of("zones.checked_long", found.checked))
    body = join(
        h.p(h.bdi(found.title)),
        None if found.checked == "primary" else doubt,
        card(t("console.details"), facts([
            (t("console.state"), t.of("zones.law_state", found.status)), (t("console.version"), found.version),
            (t("zones.effective"), h.bdi(found.effective_from)), (t("zones.review_by"), h.bdi(found.review_by)),
            (t("zones.checked"), _checked(view, found.checked)),
            (t("zones.reviewed"), h.bdi(f"{found.reviewed_by}, {found.reviewed_on}") if found.reviewed_on else ""),
            (t("zones.abroad"), t.of("zones.localisation", found.localisation)),
            (t("zones.home"), h.bdi(", ".join(found.home))),
            (t("zones.clearable"), h.bdi(", ".join(found.clearable)) if found.clearable else ""),
            (t("zones.adequate"), h.bdi(", ".join(found.adequate)) if found.adequate else ""),
            (t("zones.least_kept"), _retention(view, found)),
        ])),
        card(t("zones.bases"), _bases(view, found)),
        card(t("zones.citations"), _citations(view, found)) if found.citations else None,
        card(t("zones.timers"), _deadlines(view, found)) if found.deadlines else None,
        card(t("zones.calendar"), _calendar(view, found.calendar)),
        card(t("zones.exemptions"), _exemptions(view, found)) if found.exemptions else None,
        card(t("zones.special_categories"), _tags(found.special_categories)) if found.special_categories else None,
        card(t("zones.record_contents"), _lines(found.record_contents)) if found.record_contents else None,
        card(t("zones.sources"), _lines(found.sources)),
        card(t("zones.notes"), _lines(found.notes)) if found.notes else None,
    )  # fmt: skip
    return Page(h.bdi(found.id), body, ((t("zones.regimes"), address("zones/regimes")),))


def check(view: View) -> Page:
    """May this go there? Every rule that forbids it, and what would allow it."""
    t = view.t
    zones = [(one.id, one.id) for one in view.here.zones.list()]
    ops = [(one, t.of("zones.op", one)) for one in sorted(OPS)]
    to = view.query("abroad") or view.query("to")
    form = filters(view, (
        Field("thing", t("zones.thing"), required=True),
        Field("to", t("zones.to"), "select", options=zones),
        Field("abroad", t("zones.or_abroad")),
        Field("op", t("zones.to_do"), "select", "copy", ops),
        Field("purpose", t("zones.what_for"), value=view.look.purpose),
    ))  # fmt: skip
    asked = view.query("thing")
    answer = view.part(lambda: _answer(view, asked, to)) if asked else empty(
        view, t("zones.ask"), t("zones.ask_hint"), "falaj zones check dataset:fraud/transactions@v3 eu-west"
    )  # fmt: skip
    return Page(t("zones.may_it_go"), join(form, answer), live=("zones", "approvals") if asked else ())


def _answer(view: View, asked: str, to: str) -> Html:
    t, purpose = view.t, view.query("purpose", view.look.purpose)
    verdict: Verdict = view.here.zones.check(asked, to, view.query("op", "copy"), purpose)
    told = notice("good" if verdict.allowed else "bad", t("zones.it_may") if verdict.allowed else t("zones.it_may_not"))
    rows = [
        (h.code(rule or "", dir="ltr"), t.of("zones.rule", (rule or "").partition(":")[0]), h.bdi(reason or ""))
        for rule, reason in zip_longest(verdict.rules, verdict.reasons)
    ]
    heads = (t("zones.rule"), t("zones.means"), t("console.reason"))
    return join(
        told,
        table(view, heads, rows, t("zones.rules_spoke")) if rows else None,
        card(t("zones.would_allow"), _hint(verdict), _propose(view, asked, to)) if verdict.hint else None,
        facts(
            [
                (t("zones.owed"), _tags(verdict.obligations)),
                (t("zones.grants_used"), join([_grant(one) for one in verdict.grants])),
            ]
        ),
    )


def _hint(verdict: Verdict) -> Html:
    return h.p(verdict.hint, dir="auto")


def _propose(view: View, asked: str, to: str) -> Html:
    bare = str(Ref.parse(asked).bare)
    wanted = {"dst": to, "scope": bare, "purpose": view.query("purpose", view.look.purpose)}
    return h.p(h.a(view.t("zones.propose"), href=address("zones/grants", wanted), class_="button"))


def _grant(name: str) -> Html:
    return h.a(h.bdi(name), href=href(Ref("grant", "zones", name)))


def _checked(view: View, how: str) -> Html:
    kind = "good" if how == "primary" else "warn"
    return h.span(view.t.of("zones.checked", how), class_=f"badge {kind}")


def _retention(view: View, regime: Regime) -> Html | str:
    """Return the period, the event it starts from and the article, or nothing where the law sets none."""
    if regime.retention is None:
        return ""
    t, retention = view.t, regime.retention
    period = t(_PERIODS[retention.unit], n=retention.count)
    return join(period, " ", t.of("zones.starts", retention.starts), h.br(), h.bdi(retention.source.article))


def _bases(view: View, found: Regime) -> Html:
    t = view.t
    if not found.bases:
        return h.p(t("zones.no_bases"), class_="soft")
    columns = (t("zones.basis"), t("console.title"), t("zones.documents"),
               t("zones.owed"), t("zones.checked"), t("zones.article"))  # fmt: skip
    rows = [
        (h.bdi(basis.id), h.bdi(basis.title), _tags(basis.documents), _tags(basis.obligations),
         _checked(view, basis.source.checked), _citation(basis.source))
        for basis in found.bases.values()
    ]  # fmt: skip
    return table(view, columns, rows, t("zones.bases"))


def _citations(view: View, regime: Regime) -> Html:
    """Return where the values that are plain words come from, and who read it when."""
    t = view.t
    columns = (t("zones.value"), t("zones.checked"), t("zones.article"), t("zones.reviewed"), t("console.note"))
    rows = [
        (t.of("zones.cited", name), _checked(view, source.checked), _citation(source),
         h.bdi(f"{source.reviewed_by}, {source.reviewed_on}"), h.bdi(source.note))
        for name, source in regime.citations.items()
    ]  # fmt: skip
    return table(view, columns, rows, t("zones.citations"))


def _deadlines(view: View, regime: Regime) -> Html:
    t = view.t
    columns = (t("zones.timer"), t("zones.within"), t("zones.checked"), t("zones.article"), t("console.note"))
    rows = [
        (t.of("zones.timer", duty), _period(view, deadline), _checked(view, deadline.source.checked),
         _citation(deadline.source), h.bdi(deadline.source.note))
        for duty, deadline in regime.deadlines.items()
    ]  # fmt: skip
    return table(view, columns, rows, t("zones.timers"))


def _period(view: View, deadline: Deadline) -> Html:
    """Return the period in words, with its extension and what stops it."""
    t = view.t
    if deadline.unit == AT_ONCE:
        return t("zones.period_at_once")
    unit = _PERIODS[deadline.unit]
    parts = [t(unit, n=deadline.count)]
    if deadline.extension:
        parts.append(t("zones.extendable", period=t(unit, n=deadline.extension)))
    if deadline.ends_on_working_day:
        parts.append(t("zones.ends_on_working_day"))
    parts += [t.of("zones.stops_for", reason) for reason in deadline.stops_for]
    return h.ul([h.li(part) for part in parts]) if len(parts) > 1 else parts[0]


def _citation(source: Citation) -> Html:
    """Return article, quotation and address of a source. The console links to no other site: the address is text."""
    quote = h.p(h.q(source.quote, dir="auto"), class_="soft") if source.quote else None
    return join(h.bdi(source.article), quote, h.div(h.bdi(source.url), class_="soft small") if source.url else None)


def _exemptions(view: View, regime: Regime) -> Html:
    t = view.t
    rows = [
        (h.span(exemption.because_ar if t.rtl else exemption.because, dir="auto"),
         _tags((*exemption.regimes, *exemption.categories, *exemption.controllers)),
         _checked(view, exemption.source.checked), _citation(exemption.source))
        for exemption in regime.exemptions
    ]  # fmt: skip
    columns = (t("zones.not_applicable_because"), t("zones.exempt_when"), t("zones.checked"), t("zones.article"))
    return table(view, columns, rows, t("zones.exemptions"))


def _calendar(view: View, calendar: Calendar) -> Html:
    t = view.t
    days = [t.of("zones.weekday", str(day)) for day in calendar.weekend]
    return facts([
        (t("zones.calendar"), h.bdi(calendar.id)), (t("zones.timezone"), h.bdi(calendar.timezone)),
        (t("zones.weekend"), join(*[join(", ", day) if at else day for at, day in enumerate(days)])),
        (t("zones.holidays"), h.bdi(", ".join(calendar.holidays))),
    ])  # fmt: skip


def _lines(texts: tuple[str, ...]) -> Html:
    return h.ul([h.li(h.bdi(text)) for text in texts])


def _tags(words: tuple[str, ...]) -> Html:
    return join([tag(one) for one in words])
