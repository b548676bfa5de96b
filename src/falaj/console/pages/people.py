"""People: who is here, what they may do, their tokens; and who the house takes the reader for."""

from collections.abc import Sequence
from typing import Any

from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, Route, address, href
from falaj.console.parts import (
    Field,
    Row,
    action,
    badge,
    card,
    cards,
    copyable,
    empty,
    facts,
    filters,
    notice,
    table,
    tag,
)
from falaj.console.view import View
from falaj.core.context import HOUSE
from falaj.core.ref import Ref
from falaj.govern.people_records import Enrolment, Issued, Person, Tenant
from falaj.govern.roles import ORDINARY, ROLES

_SHOWN = 100


def people(view: View) -> Page:
    """The people and service accounts of the reader's tenant."""
    t, prefix = view.t, view.query("prefix")
    found: Sequence[Person] = view.here.people.list(prefix=prefix)
    ways = (
        h.a(t("people.me"), href=address("people/me"), class_="button"),
        h.a(t("people.tenants"), href=address("people/tenants"), class_="button") if _of_house(view) else None,
    )
    more = h.p(t("people.more", n=len(found) - _SHOWN), class_="soft") if len(found) > _SHOWN else None
    body = join(
        h.div(_add(view), ways, class_="actions"),
        filters(view, (Field("prefix", t("people.begins")),)),
        _table(view, found[:_SHOWN]) if found else empty(view, t("people.none"), t("people.none_hint"), _ADD_LINE),
        more,
    )
    return Page(t("people.title"), body, live=("people",))


def person(view: View) -> Page:
    """One account: roles, projects, living tokens, and what may be done about it."""
    t = view.t
    found: Person = view.here.people.show(view.args["ref"])
    body = join(
        h.p(badge(view, _state(found)), " ", t.of("people.kind", found.kind)),
        card(t("console.details"), facts([
            (t("people.roles"), _tags(found.roles)), (t("people.projects"), _projects(view, found.projects)),
            (t("people.requested_roles"), _tags(found.requested_roles) if found.requested_roles else ""),
            (t("people.jurisdiction"), h.bdi(found.jurisdiction) if found.jurisdiction else ""),
            (t("people.subject"), h.code(found.subject, dir="ltr") if found.subject else ""),
            (t("console.since"), view.when(found.since)),
            (t("people.did"), h.a(t("people.in_log"), href=address("audit", {"actor": found.name}))),
        ])),
        h.div(_govern(view, found), class_="actions"),
        card(t("people.tokens"), _tokens(view, found)),
    )  # fmt: skip
    return Page(h.bdi(found.name), body, live=("people",))


def me(view: View) -> Page:
    """Who the house takes the reader for, and a new token for oneself."""
    t, who = view.t, view.here.people.whoami()
    renew = action(view, "people", "renew", {}, t("people.renew"), (_hours(view),), show=True, confirm=t("people.once"))
    body = join(
        facts([
            (t("console.name"), h.bdi(who.id)), (t("people.tenant"), h.bdi(who.tenant)),
            (t("console.kind"), t.of("people.kind", who.kind)), (t("people.roles"), _tags(who.roles)),
            (t("people.projects"), _projects(view, who.projects)),
            (t("people.jurisdiction"), h.bdi(who.jurisdiction) if who.jurisdiction else t("people.unknown")),
            (t("people.strong"), badge(view, "yes" if who.strong else "no")),
            (t("people.until"), view.when(who.expires) if who.expires else ""),
        ]),
        h.div(renew, class_="actions"),
        h.p(h.a(t("people.what_may_i"), href=address("policy/explain"))),
    )  # fmt: skip
    return Page(t("people.me"), body)


def tenants(view: View) -> Page:
    """The organisations of this installation: for the people who run it."""
    return Page(view.t("people.tenants"), view.part(lambda: _tenants(view)), live=("people",))


def invited(view: View, value: Enrolment, back: str) -> Page:
    """An enrolment code, shown this once; or what stands between the reader and it."""
    t, onward = view.t, h.p(h.a(view.t("console.go_back"), href=back, class_="button"))
    if value.state == "waiting":
        approval = h.p(h.a(t("people.see_approval"), href=href(Ref.parse(value.approval)), class_="button"))
        return Page(
            t("people.reset"), join(notice("warn", t("people.waiting"), t("people.waiting_hint")), approval, onward)
        )
    if value.state == "service":
        return Page(t("people.add"), join(notice("good", t("people.service_made"), t("people.service_hint")), onward))
    body = join(
        notice("warn", t("people.code_shown"), t("people.code_hand")),
        card(t("people.code"), copyable(view, value.code)),
        facts([
            (t("people.for"), h.a(h.bdi(value.person.name), href=href(value.person.bare))),
            (t("console.until"), view.when(value.expires)),
        ]),
        onward,
    )  # fmt: skip
    return Page(t("people.code"), body)


def issued(view: View, value: Issued, back: str) -> Page:
    """A token, shown this once."""
    t = view.t
    body = join(
        notice("warn", t("people.shown_once"), t("people.keep_it")),
        card(t("console.token"), copyable(view, value.token)),
        facts([
            (t("people.for"), h.a(h.bdi(value.person.name), href=href(value.person.bare))),
            (t("people.token_id"), h.code(value.id, dir="ltr")), (t("console.until"), view.when(value.expires)),
        ]),
        h.p(h.a(view.t("console.go_back"), href=back, class_="button")),
    )  # fmt: skip
    return Page(t("people.new_token"), body)


_ADD_LINE = "falaj people add layla --roles data-scientist --jurisdiction AE"


def _of_house(view: View) -> bool:
    return view.actor.tenant == HOUSE


def _state(found: Person | Tenant) -> str:
    return "suspended" if found.suspended else "active"


def _tags(words: Sequence[str]) -> Html:
    return join([tag(one) for one in words])


def _projects(view: View, projects: Sequence[str]) -> Html:
    return view.t("people.every_project") if "*" in projects else _tags(projects)


def _table(view: View, found: Sequence[Person]) -> Html:
    t = view.t
    heads = (t("console.name"), t("people.roles"), t("people.projects"), t("people.jurisdiction"), t("console.since"),
             t("console.kind"), t("console.state"))  # fmt: skip
    rows = [
        Row((h.a(h.bdi(one.name), href=href(Ref("person", "people", one.name))), _tags(one.roles),
             _projects(view, one.projects), h.bdi(one.jurisdiction), view.ago(one.since),
             t.of("people.kind", one.kind), badge(view, _state(one))), id=f"person-{one.name}")
        for one in found
    ]  # fmt: skip
    return table(view, heads, rows, t("people.title"))


def _roles(view: View, chosen: Sequence[str] = (), *, service: bool = False) -> Field:
    options = [(one, h.bdi(one)) for one in ROLES if service or one in ORDINARY]
    return Field("roles", view.t("people.roles"), "choices", ",".join(chosen), options)


def _hours(view: View) -> Field:
    return Field("hours", view.t("people.hours"), "number", hint=view.t("people.hours_hint"))


def _add(view: View) -> Html:
    t = view.t
    fields = (
        Field("name", t("console.name"), required=True), _roles(view, service=True),
        Field("service", t("people.is_service"), "checkbox"),
        Field("projects", t("people.projects"), hint=t("people.projects_hint")),
        Field("jurisdiction", t("people.jurisdiction"), hint="AE"), _hours(view),
    )  # fmt: skip
    how = {"primary": True, "show": True, "confirm": t("people.code_once")}
    return action(view, "people", "add", {}, t("people.add"), fields, **how)


def _govern(view: View, found: Person) -> Html:
    """What may be done about an account; nobody does it to their own."""
    t, name = view.t, {"name": found.name}
    if found.name == view.actor.id:
        return h.a(t("people.me"), href=address("people/me"), class_="button")
    where = Field("jurisdiction", t("people.jurisdiction"), value=found.jurisdiction)
    which = Field("projects", t("people.projects"), value=",".join(found.projects), hint=t("people.projects_hint"))
    fields = (_roles(view, found.roles, service=found.kind == "service"), which, where)
    return join(
        action(view, "people", "change", name, t("people.change"), fields),
        _credential(view, found),
        action(view, "people", "resume", name, t("people.resume")) if found.suspended
        else action(view, "people", "suspend", name, t("people.suspend"), danger=True, confirm=t("people.stops")),
        action(view, "people", "remove", name, t("people.remove"), danger=True, confirm=t("people.for_good")),
    )  # fmt: skip


def _credential(view: View, found: Person) -> Html:
    """A service account's new token, or a person's new enrolment code."""
    t, name = view.t, {"name": found.name}
    if found.kind == "service":
        fields, once = (_hours(view),), t("people.once")
        return action(view, "people", "token", name, t("people.token"), fields, show=True, confirm=once)
    return action(view, "people", "reset", name, t("people.reset"), show=True, confirm=t("people.reset_sure"))


def _tokens(view: View, found: Person) -> Html:
    t = view.t
    if not found.tokens:
        return h.p(t("people.no_tokens"), class_="soft")
    # No table: the box that asks once more would be cut off within one that scrolls.
    return join([
        h.div(h.code(one, dir="ltr"), action(view, "people", "revoke", {"id": one}, t("people.revoke"), danger=True,
                                             confirm=t("people.revoke_sure")), class_="row", id=f"token-{one}")
        for one in found.tokens[:_SHOWN]
    ])  # fmt: skip


def _tenants(view: View) -> Html:
    t = view.t
    found: Sequence[Tenant] = view.here.people.list_tenants()
    fields = (Field("name", t("console.name"), required=True), Field("admin", t("people.admin"), required=True),
              Field("title", t("console.title")))  # fmt: skip
    made = [
        card(h.bdi(one.name), h.p(badge(view, _state(one)), " ", h.bdi(one.title)),
             facts({t("console.since"): view.ago(one.since)}), _stop(view, one), _appoint(view, one),
             id=f"tenant-{one.name}")
        for one in found
    ]  # fmt: skip
    add = action(
        view, "people", "add_tenant", {}, t("people.add_tenant"), fields, show=True, confirm=t("people.code_once")
    )
    return join(h.div(add, class_="actions"), cards(*made))


def _appoint(view: View, tenant: Tenant) -> Html:
    """The form that appoints a tenant's security officer."""
    if tenant.name == HOUSE:
        return EMPTY
    t, fields = view.t, (Field("name", view.t("people.officer"), required=True),)
    how = {"show": True, "confirm": t("people.code_once")}
    return action(view, "people", "appoint_officer", {"tenant": tenant.name}, t("people.appoint"), fields, **how)


def _stop(view: View, one: Tenant) -> Html:
    if one.name == HOUSE:
        return EMPTY
    t, name = view.t, {"name": one.name}
    if one.suspended:
        return action(view, "people", "resume_tenant", name, t("people.resume"))
    return action(view, "people", "suspend_tenant", name, t("people.suspend"), danger=True, confirm=t("people.stops"))


OUTCOMES: dict[str, Any] = {
    **dict.fromkeys(("add", "add_tenant", "appoint_officer", "reset"), invited),
    **dict.fromkeys(("token", "renew"), issued),
}
ROUTES: tuple[Route, ...] = (
    Route("people", people, ("people", "people?prefix=b")),
    Route("people/me", me, ("people/me",)),
    Route("people/tenants", tenants, ("people/tenants",)),
    Route("people/<ref>", person, ("people/person:people/amal", "people/person:people/noura")),
)
