"""Transfer grants: leave for exactly this to go from here to there, until then; each stands on two people's yes."""

from collections.abc import Sequence

from falaj.console.markup import Html, h, join
from falaj.console.page import Page, address, href
from falaj.console.pages.approvals import document_list
from falaj.console.parts import Field, Row, action, badge, card, empty, facts, filters, notice, pager, table
from falaj.console.view import View
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.govern.records import ApprovalState, GrantState

_SHOWN = 100
_STATES = ("waiting", "active", "early", "expired", "revoked", "refused")


def grants(view: View) -> Page:
    """All of them and where each stands."""
    t, state = view.t, view.query("state")
    found = view.here.zones.grants(state=state, limit=_SHOWN, after=view.query("page"))
    options = [("", t("console.all")), *((one, t.of("console.state", one)) for one in _STATES)]
    body = join(
        h.div(_propose(view), class_="actions"),
        filters(view, (Field("state", t("console.state"), "select", options=options),)),
        grant_table(view, found)
        if found
        else empty(view, t("zones.no_grants"), t("zones.no_grants_hint"), "falaj zones grants"),
        pager(view, found[-1].more if found else ""),
    )
    return Page(t("zones.grants"), body, live=("zones", "approvals"))


def grant(view: View) -> Page:
    """One grant: every field that people approved, and its end."""
    t, name = view.t, Ref.parse(view.args["ref"]).name
    found = view.here.zones.grants(name=name, limit=1)
    if not found:
        raise NotFound("there is no such transfer grant", "see the list of grants")
    state: GrantState = found[0]
    one = state.grant
    known = Ref("grant", "zones", one.id)
    revoke = action(view, "zones", "revoke", {"grant": known}, t("zones.revoke"),
                    (Field("reason", t("console.reason"), "textarea", required=True),), danger=True)  # fmt: skip
    body = join(
        h.p(badge(view, state.state), " ", h.a(t("zones.its_approval"), href=href(state.approval))),
        notice("plain", one.reason) if one.reason else None,
        card(t("console.details"), facts([
            (t("zones.way"), _way(state)), (t("zones.scope"), h.code(one.scope, dir="ltr")),
            (t("zones.basis"), _basis(state)), (t("zones.purposes"), h.bdi(", ".join(one.purposes))),
            (t("console.since"), view.when(one.not_before)), (t("console.until"), view.when(one.expires)),
            (t("zones.max_bytes"), view.bytes(one.max_bytes) if one.max_bytes else t("zones.no_limit")),
            (t("zones.author"), h.bdi(one.author)), (t("approvals.digest"), h.code(state.digest, dir="ltr")),
        ])),
        card(t("zones.documents"), _documents(view, state)),
        h.div(revoke, class_="actions") if state.state in ("waiting", "active", "early") else None,
    )  # fmt: skip
    return Page(h.bdi(one.id), body, ((t("zones.grants"), address("zones/grants")),), live=("zones", "approvals"))


def grant_table(view: View, found: Sequence[GrantState]) -> Html:
    """Grants as rows."""
    t = view.t
    columns = (t("zones.grant"), t("zones.scope"), t("zones.way"), t("zones.basis"),
               t("zones.purposes"), t("console.until"), t("console.state"))  # fmt: skip
    rows = [
        Row((
            h.a(h.bdi(one.grant.id), href=href(Ref("grant", "zones", one.grant.id)), class_="nowrap"),
            h.code(one.grant.scope, dir="ltr"), _way(one), _basis(one), h.bdi(", ".join(one.grant.purposes)),
            view.when(one.grant.expires), badge(view, one.state),
        ), id=one.grant.id)
        for one in found
    ]  # fmt: skip
    return table(view, columns, rows, t("zones.grants"))


def _documents(view: View, state: GrantState) -> Html:
    """Each document by what it is for, with its digest and a button that opens it."""
    question: ApprovalState = view.here.approvals.show(state.approval)
    digests = facts([(h.bdi(name), h.code(digest, dir="ltr")) for name, digest in state.grant.documents.items()])
    return join(document_list(view, question.approval.documents), digests)


def _way(state: GrantState) -> Html:
    return h.bdi(f"{state.grant.src} → {state.grant.dst}", dir="ltr")


def _basis(state: GrantState) -> Html:
    one = state.grant
    return h.a(h.bdi(f"{one.regime}:{one.basis}"), href=address(f"zones/regimes/{one.regime}"))


def _propose(view: View) -> Html:
    """The form; which documents a basis demands stands beside it."""
    t = view.t
    bases = [
        (f"{law.id}:{one.id}", h.bdi(f"{law.id}:{one.id} · {one.title[:50]} [{', '.join(one.documents)}]"))
        for law in view.here.zones.regimes()
        for one in law.bases.values()
    ]
    places = [(one.id, one.id) for one in view.here.zones.list()]
    fields = (
        Field("basis", t("zones.basis"), "select", view.query("basis"), bases),
        Field("src", t("zones.from"), "select", view.query("src"), places),
        Field("dst", t("zones.to"), value=view.query("dst"), required=True, hint=t("zones.to_hint")),
        Field("scope", t("zones.scope"), value=view.query("scope"), required=True, hint=t("zones.scope_hint")),
        Field("purposes", t("zones.purposes"), value=view.query("purpose"), required=True),
        Field("documents", t("zones.documents"), "textarea", required=True, hint=t("zones.documents_hint")),
        Field("more", t("zones.more"), "textarea", "expires=90d", hint=t("zones.more_hint")),
    )
    return action(view, "zones", "grant", {}, t("zones.propose"), fields, primary=True, confirm=t("zones.two_people"))
