"""Approvals: what waits for people, with exactly what they would approve, and what they said before."""

from collections.abc import Mapping, Sequence

from falaj.console.components import (
    ColumnHeader,
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
    ref_link,
    table,
    tabs,
    to_element_id,
)
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, PageRoute, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.govern.approvals import find_vote_objection
from falaj.govern.officer_notices import OFFICER_ROLE, OfficerNotice
from falaj.govern.records import ApprovalState, ApprovalVote

OPEN_STATES = ("waiting", "emergency")
_INBOX_LIMIT, _HISTORY_LIMIT = 200, 100
_APPROVAL_STATES = ("granted", "refused", "expired", "lapsed", "waiting", "emergency")


def render_approvals_page(view: PageView) -> Page:
    """The inbox: what waits for the reader first, then what waits for others; and the history."""
    shows_history = view.query("tab") == "history"
    tab_bar = tabs(view, (("waiting", view.t("approvals.tab_waiting")), ("history", view.t("console.history"))))
    return Page(
        view.t("approvals.title"),
        join_html(
            tab_bar,
            _render_history(view) if shows_history else join_html(_render_officer_notices(view), _render_inbox(view)),
        ),
        live=("approvals",),
    )


def render_approval_page(view: PageView) -> Page:
    """One question: what exactly, who asked, who said what."""
    state: ApprovalState = view.here.approvals.show(view.args["ref"])
    question = state.approval
    body = join_html(
        h.p(badge(view, state.standing.state), " ", _render_standing(view, state)),
        card(
            view.t("approvals.what"),
            _render_question_facts(view, state),
            _render_decision_buttons(view, state, is_single=True),
        ),
        card(view.t("approvals.voices"), _render_votes(view, question.voices)),
        h.p(h.a(view.t("approvals.in_log"), href=build_url("audit", {"about": str(state.ref)}))),
    )
    return Page(h.bdi(question.action), body, live=("approvals",))


def _render_inbox(view: PageView) -> Html:
    approval_service, page_token = view.here.approvals, view.query("page")
    waiting_approvals: list[ApprovalState] = list(
        approval_service.list(state=OPEN_STATES[0], limit=_INBOX_LIMIT, after=page_token)
    )
    next_page = waiting_approvals[-1].more if waiting_approvals else ""
    waiting_approvals += () if page_token else approval_service.list(state=OPEN_STATES[1], limit=_INBOX_LIMIT)
    missing_permission = view.lacks("approvals.give")
    own_approvals = (
        []
        if missing_permission
        else [approval_state for approval_state in waiting_approvals if not _explain_barred_vote(view, approval_state)]
    )
    others = [approval_state for approval_state in waiting_approvals if approval_state not in own_approvals]
    if not waiting_approvals:
        return empty_state(view, view.t("approvals.none"), view.t("approvals.none_hint"), "falaj approvals list")
    denied_notice = (
        notice("denied", view.t("approvals.not_approver"), missing_permission) if missing_permission else EMPTY
    )
    own_cards = (
        [_render_question(view, approval_state) for approval_state in own_approvals]
        if own_approvals
        else denied_notice or notice("good", view.t("approvals.nothing_for_you"))
    )
    return join_html(
        h.h2(view.t("approvals.for_you", n=len(own_approvals))),
        own_cards,
        h.h2(view.t("approvals.for_others", n=len(others))) if others else None,
        _render_other_approvals(view, others) if others else None,
        pager(view, next_page),
    )


def _render_question(view: PageView, state: ApprovalState) -> Html:
    return h.section(
        h.h3(
            h.a(h.bdi(state.approval.action), href=build_resource_url(state.ref)),
            " ",
            badge(view, state.standing.state),
        ),
        _render_question_facts(view, state),
        _render_decision_buttons(view, state),
        class_="card",
        id=to_element_id(str(state.ref)),
    )


def _render_question_facts(view: PageView, state: ApprovalState) -> Html:
    """Exactly what is approved: nobody says yes to a summary."""
    question = state.approval
    return join_html(
        h.p(question.reason, dir="auto"),
        fact_list(
            [
                (view.t("approvals.about"), ref_link(view, question.about) if question.about else ""),
                (view.t("approvals.evidence"), _render_evidence_link(view, question.about)),
                (view.t("approvals.action"), h.code(question.action, dir="ltr")),
                (view.t("approvals.asker"), h.bdi(question.asker)),
                (view.t("approvals.asked"), view.ago(question.asked)),
                (view.t("console.until"), view.when(state.standing.until)),
                (view.t("approvals.so_far"), _format_progress(view, state)),
                (view.t("approvals.digest"), h.code(question.digest, dir="ltr")),
                *((h.bdi(name), h.span(text, dir="auto")) for name, text in question.facts.items()),
            ]
        ),
        render_document_list(view, question.documents),
    )


def render_document_list(view: PageView, documents: Mapping[str, str]) -> Html:
    """The documents a decision rests on, each with a button that opens it."""
    if not documents:
        return EMPTY
    rows = [
        (h.bdi(purpose), h.code(name, dir="ltr"), _render_open_button(view, name))
        for purpose, name in documents.items()
    ]
    headers = (view.t("approvals.document_for"), view.t("approvals.document"), "")
    return join_html(h.h4(view.t("approvals.documents")), table(view, headers, rows, view.t("approvals.documents")))


def _render_open_button(view: PageView, name: str) -> Html:
    file = name.rpartition("/")[2]
    return action_button(
        view, "approvals", "open_document", {"name": name}, view.t("approvals.open_document"), file=file
    )


def _render_officer_notices(view: PageView) -> Html:
    """What a data protection officer was notified of and has not confirmed."""
    if OFFICER_ROLE not in view.actor.roles:
        return EMPTY
    notices: Sequence[OfficerNotice] = view.here.approvals.notices(unseen=True)
    if not notices:
        return EMPTY
    t = view.t
    rows = [
        TableRow(
            (
                h.span(notice.subject, dir="auto"),
                ref_link(view, notice.about),
                view.ago(notice.sent_at),
                action_button(
                    view, "approvals", "confirm", {"notice": str(notice.name)}, t("approvals.confirm_notice")
                ),
            ),
            id=str(notice.name),
        )
        for notice in notices
    ]
    headers = (t("approvals.notice"), t("approvals.about"), t("approvals.asked"), "")
    return card(t("approvals.officer_notices"), table(view, headers, rows, t("approvals.officer_notices")))


def _render_evidence_link(view: PageView, subject: str) -> Html:
    """Where what speaks for it is shown; a thing without such a page tells it on its own."""
    if not subject.startswith(("model:", "dataset:")):
        return EMPTY
    return h.a(view.t("approvals.see_evidence"), href=build_url(f"catalog/{subject}/stages"))


def _format_progress(view: PageView, state: ApprovalState) -> Html:
    return view.t("approvals.given_of", given=state.standing.given, needs=state.approval.needs)


def _render_standing(view: PageView, state: ApprovalState) -> Html:
    standing = state.standing
    if standing.state not in OPEN_STATES:
        return h.span(standing.why, class_="soft", dir="auto")
    officer_note = view.t("approvals.missing_dpo", n=standing.missing_dpo) if standing.missing_dpo else None
    return h.span(view.t("approvals.missing", n=standing.missing), " ", officer_note, class_="soft")


def _render_decision_buttons(view: PageView, state: ApprovalState, *, is_single: bool = False) -> Html:
    """Yes and no. In a list one question to policy answers for all; alone, the thing itself decides."""
    if state.standing.state not in OPEN_STATES:
        return EMPTY
    refusal_reason = _explain_barred_vote(view, state)
    if is_single and refusal_reason and not view.lacks("approvals.give"):
        return notice("denied", view.t("approvals.cannot"), refusal_reason)
    approval_argument = {"approval": str(state.ref)}
    reason_field = FormField("reason", view.t("approvals.note"), "textarea")
    required_reason = FormField("reason", view.t("approvals.why_not"), "textarea", required=True)
    policy_options = {"about": state.ref} if is_single else {}
    exact_arguments = {**approval_argument, "digest": state.approval.digest}
    confirmation = view.t("approvals.confirm", digest=state.approval.digest[:20])
    options = {"primary": True, "confirm": confirmation, **policy_options}
    give_button = action_button(
        view, "approvals", "give", exact_arguments, view.t("approvals.give"), (reason_field,), **options
    )
    refuse_button = action_button(
        view,
        "approvals",
        "refuse",
        approval_argument,
        view.t("approvals.refuse"),
        (required_reason,),
        danger=True,
        **policy_options,
    )
    return h.div(give_button, refuse_button, class_="actions")


def _render_other_approvals(view: PageView, approvals: Sequence[ApprovalState]) -> Html:
    t = view.t
    headers = (
        t("approvals.action"),
        t("approvals.about"),
        t("approvals.asker"),
        t("approvals.asked"),
        t("approvals.still"),
        t("approvals.why_not_you"),
    )
    rows = [
        TableRow(
            (
                h.a(h.bdi(approval_state.approval.action), href=build_resource_url(approval_state.ref)),
                ref_link(view, approval_state.approval.about) if approval_state.approval.about else "",
                h.bdi(approval_state.approval.asker),
                view.ago(approval_state.approval.asked),
                _render_standing(view, approval_state),
                h.span(_explain_barred_vote(view, approval_state), class_="soft"),
            ),
            id=str(approval_state.ref),
        )
        for approval_state in approvals
    ]
    return table(view, headers, rows, t("approvals.others_table"))


def _render_history(view: PageView) -> Html:
    t, state = view.t, view.query("state")
    approvals: Sequence[ApprovalState] = view.here.approvals.list(
        state=state, action=view.query("action"), limit=_HISTORY_LIMIT, after=view.query("page")
    )
    state_options = [
        ("", t("console.all")),
        *((approval_state, t.of("console.state", approval_state)) for approval_state in _APPROVAL_STATES),
    ]
    filter_bar = filter_form(
        view,
        (
            FormField("state", t("console.state"), "select", options=state_options),
            FormField("action", t("approvals.action")),
        ),
    )
    if not approvals:
        return join_html(
            filter_bar, empty_state(view, t("approvals.no_history"), t("approvals.none_hint"), "falaj approvals list")
        )
    columns = (
        t("approvals.action"),
        t("approvals.about"),
        t("console.reason"),
        t("approvals.asker"),
        t("approvals.asked"),
        ColumnHeader(t("approvals.so_far"), "n"),
        t("console.state"),
    )
    rows = [
        TableRow(
            (
                h.a(h.bdi(approval_state.approval.action), href=build_resource_url(approval_state.ref)),
                ref_link(view, approval_state.approval.about) if approval_state.approval.about else "",
                h.span(approval_state.approval.reason[:120], dir="auto"),
                h.bdi(approval_state.approval.asker),
                view.ago(approval_state.approval.asked),
                _format_progress(view, approval_state),
                badge(view, approval_state.standing.state),
            ),
            id=str(approval_state.ref),
        )
        for approval_state in approvals
    ]
    return join_html(filter_bar, table(view, columns, rows, t("console.history")), pager(view, approvals[-1].more))


def _render_votes(view: PageView, votes: Sequence[ApprovalVote]) -> Html:
    t = view.t
    if not votes:
        return h.p(t("approvals.no_voices"), class_="soft")
    rows = [
        (
            h.bdi(vote.actor),
            badge(view, "granted" if vote.says == "give" else "refused"),
            view.when(vote.at),
            h.bdi(", ".join(vote.roles)),
            h.span(vote.reason, dir="auto"),
        )
        for vote in votes
    ]
    headers = (t("console.who"), t("approvals.said"), t("console.when"), t("approvals.as_role"), t("console.reason"))
    return table(view, headers, rows, t("approvals.voices"))


def _explain_barred_vote(view: PageView, state: ApprovalState) -> Html:
    """Why the reader's voice would not count, or nothing when it would: the room's own judgement."""
    actor, question = view.actor, state.approval
    if any(vote.person == actor.person for vote in question.voices):
        return view.t("approvals.spoke")
    roles = tuple(sorted(actor.roles))
    reason = find_vote_objection(
        question,
        ApprovalVote(
            "give",
            actor.person,
            actor.id,
            actor.kind,
            roles,
            view.now,
            question.digest,
            actor.behalf,
            makers=actor.makers,
        ),
    )
    return view.english(reason) if reason else EMPTY


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(
        "approvals",
        render_approvals_page,
        ("approvals", "approvals?tab=history", "approvals?tab=history&state=refused"),
    ),
    PageRoute(
        "approvals/<ref>",
        render_approval_page,
        (
            "approvals/approval:approvals/hostile.other.f9cf638208e83eef0518b2366dc9b967",
            "approvals/approval:approvals/hostile.act.8f8e1004372d79237ff8bf3a31848865",
        ),
    ),
)
