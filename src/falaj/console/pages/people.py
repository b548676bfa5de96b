"""People: who is here, what they may do, their tokens; and who the house takes the reader for."""

from collections.abc import Sequence
from typing import Any

from falaj.console.components import (
    FormField,
    TableRow,
    action_button,
    badge,
    card,
    card_grid,
    copyable_code,
    empty_state,
    fact_list,
    filter_form,
    notice,
    table,
    tag,
)
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, PageRoute, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.core.context import SYSTEM_TENANT
from falaj.core.ref import Ref
from falaj.govern.people_records import AccountPerson, EnrolmentTicket, IssuedToken, TenantInfo
from falaj.govern.roles import PERSON_ROLES, ROLES

_MAX_SHOWN = 100


def render_people_page(view: PageView) -> Page:
    """The people and service accounts of the reader's tenant."""
    t, prefix = view.t, view.query("prefix")
    accounts: Sequence[AccountPerson] = view.here.people.list(prefix=prefix)
    links = (
        h.a(t("people.me"), href=build_url("people/me"), class_="button"),
        h.a(t("people.tenants"), href=build_url("people/tenants"), class_="button") if _is_operator(view) else None,
    )
    truncation_note = (
        h.p(t("people.more", n=len(accounts) - _MAX_SHOWN), class_="soft") if len(accounts) > _MAX_SHOWN else None
    )
    body = join_html(
        h.div(_render_add_button(view), links, class_="actions"),
        filter_form(view, (FormField("prefix", t("people.begins")),)),
        _render_table(view, accounts[:_MAX_SHOWN])
        if accounts
        else empty_state(view, t("people.none"), t("people.none_hint"), _ADD_COMMAND),
        truncation_note,
    )
    return Page(t("people.title"), body, live=("people",))


def render_account_page(view: PageView) -> Page:
    """One account: roles, projects, living tokens, and what may be done about it."""
    t = view.t
    account: AccountPerson = view.here.people.show(view.args["ref"])
    body = join_html(
        h.p(badge(view, _get_account_state(account)), " ", t.of("people.kind", account.kind)),
        card(
            t("console.details"),
            fact_list(
                [
                    (t("people.roles"), _render_tags(account.roles)),
                    (t("people.projects"), _render_projects(view, account.projects)),
                    (
                        t("people.requested_roles"),
                        _render_tags(account.requested_roles) if account.requested_roles else "",
                    ),
                    (t("people.jurisdiction"), h.bdi(account.jurisdiction) if account.jurisdiction else ""),
                    (t("people.subject"), h.code(account.subject, dir="ltr") if account.subject else ""),
                    (t("console.since"), view.when(account.since)),
                    (t("people.did"), h.a(t("people.in_log"), href=build_url("audit", {"actor": account.name}))),
                ]
            ),
        ),
        h.div(_render_account_actions(view, account), class_="actions"),
        card(t("people.tokens"), _render_tokens(view, account)),
    )
    return Page(h.bdi(account.name), body, live=("people",))


def render_own_page(view: PageView) -> Page:
    """Who the house takes the reader for, and a new token for oneself."""
    t, caller = view.t, view.here.people.whoami()
    renew_button = action_button(
        view, "people", "renew", {}, t("people.renew"), (_make_hours_field(view),), show=True, confirm=t("people.once")
    )
    body = join_html(
        fact_list(
            [
                (t("console.name"), h.bdi(caller.id)),
                (t("people.tenant"), h.bdi(caller.tenant)),
                (t("console.kind"), t.of("people.kind", caller.kind)),
                (t("people.roles"), _render_tags(caller.roles)),
                (t("people.projects"), _render_projects(view, caller.projects)),
                (t("people.jurisdiction"), h.bdi(caller.jurisdiction) if caller.jurisdiction else t("people.unknown")),
                (t("people.strong"), badge(view, "yes" if caller.strong else "no")),
                (t("people.until"), view.when(caller.expires) if caller.expires else ""),
            ]
        ),
        h.div(renew_button, class_="actions"),
        h.p(h.a(t("people.what_may_i"), href=build_url("policy/explain"))),
    )
    return Page(t("people.me"), body)


def render_tenants_page(view: PageView) -> Page:
    """The organisations of this installation: for the people who run it."""
    return Page(view.t("people.tenants"), view.part(lambda: _render_tenants(view)), live=("people",))


def render_enrolment_page(view: PageView, enrolment: EnrolmentTicket, return_path: str) -> Page:
    """An enrolment code, shown this once; or what stands between the reader and it."""
    t, back_link = view.t, h.p(h.a(view.t("console.go_back"), href=return_path, class_="button"))
    if enrolment.state == "waiting":
        approval_link = h.p(
            h.a(t("people.see_approval"), href=build_resource_url(Ref.parse(enrolment.approval)), class_="button")
        )
        return Page(
            t("people.reset"),
            join_html(notice("warn", t("people.waiting"), t("people.waiting_hint")), approval_link, back_link),
        )
    if enrolment.state == "service":
        return Page(
            t("people.add"), join_html(notice("good", t("people.service_made"), t("people.service_hint")), back_link)
        )
    body = join_html(
        notice("warn", t("people.code_shown"), t("people.code_hand")),
        card(t("people.code"), copyable_code(view, enrolment.code)),
        fact_list(
            [
                (t("people.for"), h.a(h.bdi(enrolment.person.name), href=build_resource_url(enrolment.person.bare))),
                (t("console.until"), view.when(enrolment.expires)),
            ]
        ),
        back_link,
    )
    return Page(t("people.code"), body)


def render_token_page(view: PageView, issued_token: IssuedToken, return_path: str) -> Page:
    """A token, shown this once."""
    t = view.t
    body = join_html(
        notice("warn", t("people.shown_once"), t("people.keep_it")),
        card(t("console.token"), copyable_code(view, issued_token.token)),
        fact_list(
            [
                (
                    t("people.for"),
                    h.a(h.bdi(issued_token.person.name), href=build_resource_url(issued_token.person.bare)),
                ),
                (t("people.token_id"), h.code(issued_token.id, dir="ltr")),
                (t("console.until"), view.when(issued_token.expires)),
            ]
        ),
        h.p(h.a(view.t("console.go_back"), href=return_path, class_="button")),
    )
    return Page(t("people.new_token"), body)


_ADD_COMMAND = "falaj people add layla --roles data-scientist --jurisdiction AE"


def _is_operator(view: PageView) -> bool:
    return view.actor.tenant == SYSTEM_TENANT


def _get_account_state(account: AccountPerson | TenantInfo) -> str:
    return "suspended" if account.suspended else "active"


def _render_tags(values: Sequence[str]) -> Html:
    return join_html([tag(value) for value in values])


def _render_projects(view: PageView, projects: Sequence[str]) -> Html:
    return view.t("people.every_project") if "*" in projects else _render_tags(projects)


def _render_table(view: PageView, accounts: Sequence[AccountPerson]) -> Html:
    t = view.t
    headers = (
        t("console.name"),
        t("people.roles"),
        t("people.projects"),
        t("people.jurisdiction"),
        t("console.since"),
        t("console.kind"),
        t("console.state"),
    )
    rows = [
        TableRow(
            (
                h.a(h.bdi(account.name), href=build_resource_url(Ref("person", "people", account.name))),
                _render_tags(account.roles),
                _render_projects(view, account.projects),
                h.bdi(account.jurisdiction),
                view.ago(account.since),
                t.of("people.kind", account.kind),
                badge(view, _get_account_state(account)),
            ),
            id=f"person-{account.name}",
        )
        for account in accounts
    ]
    return table(view, headers, rows, t("people.title"))


def _make_roles_field(view: PageView, chosen_roles: Sequence[str] = (), *, is_service: bool = False) -> FormField:
    options = [(role, h.bdi(role)) for role in ROLES if is_service or role in PERSON_ROLES]
    return FormField("roles", view.t("people.roles"), "choices", ",".join(chosen_roles), options)


def _make_hours_field(view: PageView) -> FormField:
    return FormField("hours", view.t("people.hours"), "number", hint=view.t("people.hours_hint"))


def _render_add_button(view: PageView) -> Html:
    t = view.t
    fields = (
        FormField("name", t("console.name"), required=True),
        _make_roles_field(view, is_service=True),
        FormField("service", t("people.is_service"), "checkbox"),
        FormField("projects", t("people.projects"), hint=t("people.projects_hint")),
        FormField("jurisdiction", t("people.jurisdiction"), hint="AE"),
        _make_hours_field(view),
    )
    options = {"primary": True, "show": True, "confirm": t("people.code_once")}
    return action_button(view, "people", "add", {}, t("people.add"), fields, **options)


def _render_account_actions(view: PageView, account: AccountPerson) -> Html:
    """What may be done about an account; nobody does it to their own."""
    t, name_argument = view.t, {"name": account.name}
    if account.name == view.actor.id:
        return h.a(t("people.me"), href=build_url("people/me"), class_="button")
    jurisdiction_field = FormField("jurisdiction", t("people.jurisdiction"), value=account.jurisdiction)
    projects_field = FormField(
        "projects", t("people.projects"), value=",".join(account.projects), hint=t("people.projects_hint")
    )
    fields = (
        _make_roles_field(view, account.roles, is_service=account.kind == "service"),
        projects_field,
        jurisdiction_field,
    )
    return join_html(
        action_button(view, "people", "change", name_argument, t("people.change"), fields),
        _render_credential_button(view, account),
        action_button(view, "people", "resume", name_argument, t("people.resume"))
        if account.suspended
        else action_button(
            view, "people", "suspend", name_argument, t("people.suspend"), danger=True, confirm=t("people.stops")
        ),
        action_button(
            view, "people", "remove", name_argument, t("people.remove"), danger=True, confirm=t("people.for_good")
        ),
    )


def _render_credential_button(view: PageView, account: AccountPerson) -> Html:
    """A service account's new token, or a person's new enrolment code."""
    t, name_argument = view.t, {"name": account.name}
    if account.kind == "service":
        fields, confirmation = (_make_hours_field(view),), t("people.once")
        return action_button(
            view, "people", "token", name_argument, t("people.token"), fields, show=True, confirm=confirmation
        )
    return action_button(
        view, "people", "reset", name_argument, t("people.reset"), show=True, confirm=t("people.reset_sure")
    )


def _render_tokens(view: PageView, account: AccountPerson) -> Html:
    t = view.t
    if not account.tokens:
        return h.p(t("people.no_tokens"), class_="soft")
    # No table: the box that asks once more would be cut off within one that scrolls.
    return join_html(
        [
            h.div(
                h.code(token_id, dir="ltr"),
                action_button(
                    view,
                    "people",
                    "revoke",
                    {"id": token_id},
                    t("people.revoke"),
                    danger=True,
                    confirm=t("people.revoke_sure"),
                ),
                class_="row",
                id=f"token-{token_id}",
            )
            for token_id in account.tokens[:_MAX_SHOWN]
        ]
    )


def _render_tenants(view: PageView) -> Html:
    t = view.t
    tenants: Sequence[TenantInfo] = view.here.people.list_tenants()
    fields = (
        FormField("name", t("console.name"), required=True),
        FormField("admin", t("people.admin"), required=True),
        FormField("title", t("console.title")),
    )
    tenant_cards = [
        card(
            h.bdi(tenant.name),
            h.p(badge(view, _get_account_state(tenant)), " ", h.bdi(tenant.title)),
            fact_list({t("console.since"): view.ago(tenant.since)}),
            _render_suspend_button(view, tenant),
            _render_appoint_button(view, tenant),
            id=f"tenant-{tenant.name}",
        )
        for tenant in tenants
    ]
    add_button = action_button(
        view, "people", "add_tenant", {}, t("people.add_tenant"), fields, show=True, confirm=t("people.code_once")
    )
    return join_html(h.div(add_button, class_="actions"), card_grid(*tenant_cards))


def _render_appoint_button(view: PageView, tenant: TenantInfo) -> Html:
    """The form that appoints a tenant's security officer."""
    if tenant.name == SYSTEM_TENANT:
        return EMPTY
    t, fields = view.t, (FormField("name", view.t("people.officer"), required=True),)
    options = {"show": True, "confirm": t("people.code_once")}
    return action_button(
        view, "people", "appoint_officer", {"tenant": tenant.name}, t("people.appoint"), fields, **options
    )


def _render_suspend_button(view: PageView, tenant: TenantInfo) -> Html:
    if tenant.name == SYSTEM_TENANT:
        return EMPTY
    t, name_argument = view.t, {"name": tenant.name}
    if tenant.suspended:
        return action_button(view, "people", "resume_tenant", name_argument, t("people.resume"))
    return action_button(
        view, "people", "suspend_tenant", name_argument, t("people.suspend"), danger=True, confirm=t("people.stops")
    )


OUTCOMES: dict[str, Any] = {
    **dict.fromkeys(("add", "add_tenant", "appoint_officer", "reset"), render_enrolment_page),
    **dict.fromkeys(("token", "renew"), render_token_page),
}
ROUTES: tuple[PageRoute, ...] = (
    PageRoute("people", render_people_page, ("people", "people?prefix=b")),
    PageRoute("people/me", render_own_page, ("people/me",)),
    PageRoute("people/tenants", render_tenants_page, ("people/tenants",)),
    PageRoute("people/<ref>", render_account_page, ("people/person:people/amal", "people/person:people/noura")),
)
