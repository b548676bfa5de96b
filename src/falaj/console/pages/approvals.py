"""Approvals: what waits for people, with exactly what they would approve, and what they said before."""

from collections.abc import Mapping, Sequence

from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, Route, address, href
from falaj.console.parts import (
    Column,
    Field,
    Row,
    action,
    badge,
    card,
    empty,
    facts,
    filters,
    notice,
    pager,
    ref,
    slug,
    table,
    tabs,
)
from falaj.console.view import View
from falaj.govern.approvals import may_speak
from falaj.govern.officer_notices import OFFICER_ROLE, Notice
from falaj.govern.records import ApprovalState, Voice

OPEN = ("waiting", "emergency")
_INBOX, _HISTORY = 200, 100
_STATES = ("granted", "refused", "expired", "lapsed", "waiting", "emergency")


def approvals(view: View) -> Page:
    """The inbox: what waits for the reader first, then what waits for others; and the history."""
    past = view.query("tab") == "history"
    head = tabs(view, (("waiting", view.t("approvals.tab_waiting")), ("history", view.t("console.history"))))
    return Page(
        view.t("approvals.title"),
        join(head, _history(view) if past else join(_officer_notices(view), _inbox(view))),
        live=("approvals",),
    )


def approval(view: View) -> Page:
    """One question: what exactly, who asked, who said what."""
    state: ApprovalState = view.here.approvals.show(view.args["ref"])
    asked = state.approval
    body = join(
        h.p(badge(view, state.standing.state), " ", _still(view, state)),
        card(view.t("approvals.what"), _what(view, state), _choice(view, state, alone=True)),
        card(view.t("approvals.voices"), _voices(view, asked.voices)),
        h.p(h.a(view.t("approvals.in_log"), href=address("audit", {"about": str(state.ref)}))),
    )
    return Page(h.bdi(asked.action), body, live=("approvals",))


def _inbox(view: View) -> Html:
    desk, page = view.here.approvals, view.query("page")
    waiting: list[ApprovalState] = list(desk.list(state=OPEN[0], limit=_INBOX, after=page))
    more = waiting[-1].more if waiting else ""
    waiting += () if page else desk.list(state=OPEN[1], limit=_INBOX)
    lacking = view.lacks("approvals.give")
    mine = [] if lacking else [one for one in waiting if not _silent(view, one)]
    others = [one for one in waiting if one not in mine]
    if not waiting:
        return empty(view, view.t("approvals.none"), view.t("approvals.none_hint"), "falaj approvals list")
    told = notice("denied", view.t("approvals.not_approver"), lacking) if lacking else EMPTY
    first = [_asked(view, one) for one in mine] if mine else told or notice("good", view.t("approvals.nothing_for_you"))
    return join(
        h.h2(view.t("approvals.for_you", n=len(mine))),
        first,
        h.h2(view.t("approvals.for_others", n=len(others))) if others else None,
        _others(view, others) if others else None,
        pager(view, more),
    )


def _asked(view: View, state: ApprovalState) -> Html:
    return h.section(
        h.h3(h.a(h.bdi(state.approval.action), href=href(state.ref)), " ", badge(view, state.standing.state)),
        _what(view, state),
        _choice(view, state),
        class_="card", id=slug(str(state.ref)),
    )  # fmt: skip


def _what(view: View, state: ApprovalState) -> Html:
    """Exactly what is approved: nobody says yes to a summary."""
    asked = state.approval
    return join(
        h.p(asked.reason, dir="auto"),
        facts([
            (view.t("approvals.about"), ref(view, asked.about) if asked.about else ""),
            (view.t("approvals.evidence"), _evidence(view, asked.about)),
            (view.t("approvals.action"), h.code(asked.action, dir="ltr")),
            (view.t("approvals.asker"), h.bdi(asked.asker)),
            (view.t("approvals.asked"), view.ago(asked.asked)),
            (view.t("console.until"), view.when(state.standing.until)),
            (view.t("approvals.so_far"), _so_far(view, state)),
            (view.t("approvals.digest"), h.code(asked.digest, dir="ltr")),
            *((h.bdi(name), h.span(text, dir="auto")) for name, text in asked.facts.items()),
        ]),
        document_list(view, asked.documents),
    )  # fmt: skip


def document_list(view: View, documents: Mapping[str, str]) -> Html:
    """The documents a decision rests on, each with a button that opens it."""
    if not documents:
        return EMPTY
    rows = [(h.bdi(purpose), h.code(name, dir="ltr"), _open_button(view, name)) for purpose, name in documents.items()]
    heads = (view.t("approvals.document_for"), view.t("approvals.document"), "")
    return join(h.h4(view.t("approvals.documents")), table(view, heads, rows, view.t("approvals.documents")))


def _open_button(view: View, name: str) -> Html:
    file = name.rpartition("/")[2]
    return action(view, "approvals", "open_document", {"name": name}, view.t("approvals.open_document"), file=file)


def _officer_notices(view: View) -> Html:
    """What a data protection officer was notified of and has not confirmed."""
    if OFFICER_ROLE not in view.actor.roles:
        return EMPTY
    notices: Sequence[Notice] = view.here.approvals.notices(unseen=True)
    if not notices:
        return EMPTY
    t = view.t
    rows = [
        Row((
            h.span(notice.subject, dir="auto"), ref(view, notice.about), view.ago(notice.sent_at),
            action(view, "approvals", "confirm", {"notice": str(notice.name)}, t("approvals.confirm_notice")),
        ), id=str(notice.name))
        for notice in notices
    ]  # fmt: skip
    heads = (t("approvals.notice"), t("approvals.about"), t("approvals.asked"), "")
    return card(t("approvals.officer_notices"), table(view, heads, rows, t("approvals.officer_notices")))


def _evidence(view: View, about: str) -> Html:
    """Where what speaks for it is shown; a thing without such a page tells it on its own."""
    if not about.startswith(("model:", "dataset:")):
        return EMPTY
    return h.a(view.t("approvals.see_evidence"), href=address(f"catalog/{about}/stages"))


def _so_far(view: View, state: ApprovalState) -> Html:
    return view.t("approvals.given_of", given=state.standing.given, needs=state.approval.needs)


def _still(view: View, state: ApprovalState) -> Html:
    now = state.standing
    if now.state not in OPEN:
        return h.span(now.why, class_="soft", dir="auto")
    officer = view.t("approvals.missing_dpo", n=now.missing_dpo) if now.missing_dpo else None
    return h.span(view.t("approvals.missing", n=now.missing), " ", officer, class_="soft")


def _choice(view: View, state: ApprovalState, *, alone: bool = False) -> Html:
    """Yes and no. In a list one question to policy answers for all; alone, the thing itself decides."""
    if state.standing.state not in OPEN:
        return EMPTY
    why = _silent(view, state)
    if alone and why and not view.lacks("approvals.give"):
        return notice("denied", view.t("approvals.cannot"), why)
    named = {"approval": str(state.ref)}
    note = Field("reason", view.t("approvals.note"), "textarea")
    needed = Field("reason", view.t("approvals.why_not"), "textarea", required=True)
    about = {"about": state.ref} if alone else {}
    exact = {**named, "digest": state.approval.digest}
    sure = view.t("approvals.confirm", digest=state.approval.digest[:20])
    how = {"primary": True, "confirm": sure, **about}
    yes = action(view, "approvals", "give", exact, view.t("approvals.give"), (note,), **how)
    no = action(view, "approvals", "refuse", named, view.t("approvals.refuse"), (needed,), danger=True, **about)
    return h.div(yes, no, class_="actions")


def _others(view: View, found: Sequence[ApprovalState]) -> Html:
    t = view.t
    heads = (t("approvals.action"), t("approvals.about"), t("approvals.asker"), t("approvals.asked"),
             t("approvals.still"), t("approvals.why_not_you"))  # fmt: skip
    rows = [
        Row((
            h.a(h.bdi(one.approval.action), href=href(one.ref)),
            ref(view, one.approval.about) if one.approval.about else "",
            h.bdi(one.approval.asker), view.ago(one.approval.asked), _still(view, one),
            h.span(_silent(view, one), class_="soft"),
        ), id=str(one.ref))
        for one in found
    ]  # fmt: skip
    return table(view, heads, rows, t("approvals.others_table"))


def _history(view: View) -> Html:
    t, state = view.t, view.query("state")
    found: Sequence[ApprovalState] = view.here.approvals.list(
        state=state, action=view.query("action"), limit=_HISTORY, after=view.query("page")
    )
    options = [("", t("console.all")), *((one, t.of("console.state", one)) for one in _STATES)]
    head = filters(view, (Field("state", t("console.state"), "select", options=options),
                          Field("action", t("approvals.action"))))  # fmt: skip
    if not found:
        return join(head, empty(view, t("approvals.no_history"), t("approvals.none_hint"), "falaj approvals list"))
    columns = (t("approvals.action"), t("approvals.about"), t("console.reason"),
               t("approvals.asker"), t("approvals.asked"), Column(t("approvals.so_far"), "n"),
               t("console.state"))  # fmt: skip
    rows = [
        Row((
            h.a(h.bdi(one.approval.action), href=href(one.ref)),
            ref(view, one.approval.about) if one.approval.about else "",
            h.span(one.approval.reason[:120], dir="auto"),
            h.bdi(one.approval.asker), view.ago(one.approval.asked), _so_far(view, one),
            badge(view, one.standing.state),
        ), id=str(one.ref))
        for one in found
    ]  # fmt: skip
    return join(head, table(view, columns, rows, t("console.history")), pager(view, found[-1].more))


def _voices(view: View, voices: Sequence[Voice]) -> Html:
    t = view.t
    if not voices:
        return h.p(t("approvals.no_voices"), class_="soft")
    rows = [
        (h.bdi(one.actor), badge(view, "granted" if one.says == "give" else "refused"), view.when(one.at),
         h.bdi(", ".join(one.roles)), h.span(one.reason, dir="auto"))
        for one in voices
    ]  # fmt: skip
    heads = (t("console.who"), t("approvals.said"), t("console.when"), t("approvals.as_role"), t("console.reason"))
    return table(view, heads, rows, t("approvals.voices"))


def _silent(view: View, state: ApprovalState) -> Html:
    """Why the reader's voice would not count, or nothing when it would: the room's own judgement."""
    who, asked = view.actor, state.approval
    if any(one.person == who.person for one in asked.voices):
        return view.t("approvals.spoke")
    roles = tuple(sorted(who.roles))
    why = may_speak(
        asked, Voice("give", who.person, who.id, who.kind, roles, view.now, asked.digest, who.behalf, makers=who.makers)
    )
    return view.english(why) if why else EMPTY


ROUTES: tuple[Route, ...] = (
    Route("approvals", approvals, ("approvals", "approvals?tab=history", "approvals?tab=history&state=refused")),
    Route(
        "approvals/<ref>",
        approval,
        (
            "approvals/approval:approvals/hostile.other.f9cf638208e83eef0518b2366dc9b967",
            "approvals/approval:approvals/hostile.act.8f8e1004372d79237ff8bf3a31848865",
        ),
    ),
)
