"""Transfer grants: leave for exactly this to go from here to there, until then; each stands on two people's yes."""

from collections.abc import Sequence

from falaj.console.components import (
    FormField,
    TableRow,
    action_button,
    badge,
    card,
    empty_state,
    fact_list,
    filter_form,
    notice,
    pager,
    table,
)
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.approvals import render_document_list
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.govern.records import ApprovalState, GrantState

_MAX_SHOWN = 100
_GRANT_STATES = ("waiting", "active", "early", "expired", "revoked", "refused")


def render_grants_page(view: PageView) -> Page:
    """All of them and where each stands."""
    t, state = view.t, view.query("state")
    grant_states = view.here.zones.grants(state=state, limit=_MAX_SHOWN, after=view.query("page"))
    options = [
        ("", t("console.all")),
        *((state_option, t.of("console.state", state_option)) for state_option in _GRANT_STATES),
    ]
    body = join_html(
        h.div(_render_propose_form(view), class_="actions"),
        filter_form(view, (FormField("state", t("console.state"), "select", options=options),)),
        render_grant_table(view, grant_states)
        if grant_states
        else empty_state(view, t("zones.no_grants"), t("zones.no_grants_hint"), "falaj zones grants"),
        pager(view, grant_states[-1].more if grant_states else ""),
    )
    return Page(t("zones.grants"), body, live=("zones", "approvals"))


def render_grant_page(view: PageView) -> Page:
    """One grant: every field that people approved, and its end."""
    t, name = view.t, Ref.parse(view.args["ref"]).name
    grant_states = view.here.zones.grants(name=name, limit=1)
    if not grant_states:
        raise NotFound("there is no such transfer grant", "see the list of grants")
    state: GrantState = grant_states[0]
    transfer_grant = state.grant
    grant_ref = Ref("grant", "zones", transfer_grant.id)
    revoke_button = action_button(
        view,
        "zones",
        "revoke",
        {"grant": grant_ref},
        t("zones.revoke"),
        (FormField("reason", t("console.reason"), "textarea", required=True),),
        danger=True,
    )
    body = join_html(
        h.p(badge(view, state.state), " ", h.a(t("zones.its_approval"), href=build_resource_url(state.approval))),
        notice("plain", transfer_grant.reason) if transfer_grant.reason else None,
        card(
            t("console.details"),
            fact_list(
                [
                    (t("zones.way"), _render_direction(state)),
                    (t("zones.scope"), h.code(transfer_grant.scope, dir="ltr")),
                    (t("zones.basis"), _render_legal_basis(state)),
                    (t("zones.purposes"), h.bdi(", ".join(transfer_grant.purposes))),
                    (t("console.since"), view.when(transfer_grant.not_before)),
                    (t("console.until"), view.when(transfer_grant.expires)),
                    (
                        t("zones.max_bytes"),
                        view.bytes(transfer_grant.max_bytes) if transfer_grant.max_bytes else t("zones.no_limit"),
                    ),
                    (t("zones.author"), h.bdi(transfer_grant.author)),
                    (t("approvals.digest"), h.code(state.digest, dir="ltr")),
                ]
            ),
        ),
        card(t("zones.documents"), _render_documents(view, state)),
        h.div(revoke_button, class_="actions") if state.state in ("waiting", "active", "early") else None,
    )
    return Page(
        h.bdi(transfer_grant.id), body, ((t("zones.grants"), build_url("zones/grants")),), live=("zones", "approvals")
    )


def render_grant_table(view: PageView, grant_states: Sequence[GrantState]) -> Html:
    """Grants as rows."""
    t = view.t
    columns = (
        t("zones.grant"),
        t("zones.scope"),
        t("zones.way"),
        t("zones.basis"),
        t("zones.purposes"),
        t("console.until"),
        t("console.state"),
    )
    rows = [
        TableRow(
            (
                h.a(
                    h.bdi(grant_state.grant.id),
                    href=build_resource_url(Ref("grant", "zones", grant_state.grant.id)),
                    class_="nowrap",
                ),
                h.code(grant_state.grant.scope, dir="ltr"),
                _render_direction(grant_state),
                _render_legal_basis(grant_state),
                h.bdi(", ".join(grant_state.grant.purposes)),
                view.when(grant_state.grant.expires),
                badge(view, grant_state.state),
            ),
            id=grant_state.grant.id,
        )
        for grant_state in grant_states
    ]
    return table(view, columns, rows, t("zones.grants"))


def _render_documents(view: PageView, state: GrantState) -> Html:
    """Each document by what it is for, with its digest and a button that opens it."""
    question: ApprovalState = view.here.approvals.show(state.approval)
    digest_facts = fact_list(
        [(h.bdi(name), h.code(digest, dir="ltr")) for name, digest in state.grant.documents.items()]
    )
    return join_html(render_document_list(view, question.approval.documents), digest_facts)


def _render_direction(grant_state: GrantState) -> Html:
    return h.bdi(f"{grant_state.grant.src} → {grant_state.grant.dst}", dir="ltr")


def _render_legal_basis(grant_state: GrantState) -> Html:
    transfer_grant = grant_state.grant
    return h.a(
        h.bdi(f"{transfer_grant.regime}:{transfer_grant.basis}"),
        href=build_url(f"zones/regimes/{transfer_grant.regime}"),
    )


def _render_propose_form(view: PageView) -> Html:
    """The form; which documents a basis demands stands beside it."""
    t = view.t
    basis_options = [
        (f"{law.id}:{item.id}", h.bdi(f"{law.id}:{item.id} · {item.title[:50]} [{', '.join(item.documents)}]"))
        for law in view.here.zones.regimes()
        for item in law.bases.values()
    ]
    zone_options = [(item.id, item.id) for item in view.here.zones.list()]
    fields = (
        FormField("basis", t("zones.basis"), "select", view.query("basis"), basis_options),
        FormField("src", t("zones.from"), "select", view.query("src"), zone_options),
        FormField("dst", t("zones.to"), value=view.query("dst"), required=True, hint=t("zones.to_hint")),
        FormField("scope", t("zones.scope"), value=view.query("scope"), required=True, hint=t("zones.scope_hint")),
        FormField("purposes", t("zones.purposes"), value=view.query("purpose"), required=True),
        FormField("documents", t("zones.documents"), "textarea", required=True, hint=t("zones.documents_hint")),
        FormField("more", t("zones.more"), "textarea", "expires=90d", hint=t("zones.more_hint")),
    )
    return action_button(
        view, "zones", "grant", {}, t("zones.propose"), fields, primary=True, confirm=t("zones.two_people")
    )
