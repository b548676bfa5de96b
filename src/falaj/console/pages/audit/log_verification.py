"""Whether the log is whole: checkpoints, "verify now", growth, acts without an end, and evidence to take away."""

from collections.abc import Sequence

from falaj.audit.merkle import verify_consistency
from falaj.audit.records import ConsistencyProof, LogCheck, SignedCheckpoint, UnfinishedIntent
from falaj.audit.signed_note import decode_base64
from falaj.console.components import (
    ColumnHeader,
    FormField,
    TableRow,
    action_button,
    badge,
    card,
    card_grid,
    empty_state,
    fact_list,
    notice,
    pager,
    ref_link,
    table,
)
from falaj.console.markup import Html, h, join_html
from falaj.console.page import FileDownload, Page, build_url
from falaj.console.page_view import PageView
from falaj.core.errors import NotFound

_PAGE_SIZE = 50
_EXPORT_SPANS = (("day", 1), ("week", 7), ("month", 30), ("year", 365))


def render_verification_page(view: PageView) -> Page:
    """Everything that an auditor does, on one page."""
    t = view.t
    check_button = action_button(
        view, "audit", "check", {}, t("audit.verify"), show=True, primary=True, back=view.link()
    )
    spans = [
        ("0", t("audit.whole_log")),
        *((str(int(view.now - 86_400 * days)), t.of("audit.span", name)) for name, days in _EXPORT_SPANS),
    ]
    export_button = action_button(
        view,
        "audit",
        "export",
        {},
        t("audit.export"),
        file="evidence.zip",
        fields=(FormField("since", t("audit.from"), "select", options=spans),),
    )
    seal_button = action_button(view, "audit", "seal", {}, t("audit.seal"))
    body = join_html(
        card_grid(
            card(t("audit.verify"), h.p(t("audit.verify_hint")), check_button),
            card(
                t("audit.evidence"),
                h.p(t("audit.evidence_hint")),
                export_button,
                h.p(h.a(t("audit.verifier"), href=build_url("audit/verifier"))),
            ),
            card(
                t("audit.newest"),
                view.part(lambda: _render_newest(view)),
                seal_button,
                h.p(h.a(t("audit.checkpoints"), href=build_url("audit/checkpoints"))),
            ),
        ),
        card(
            t("audit.unfinished"),
            h.p(t("audit.unfinished_hint")),
            action_button(view, "audit", "unfinished", {}, t("audit.look"), show=True, back=view.link()),
        ),
        card(
            t("audit.witnesses"),
            h.p(t("audit.witnesses_hint")),
            action_button(
                view,
                "audit",
                "enrol",
                {},
                t("audit.enrol"),
                (FormField("name", t("console.name"), required=True), FormField("key", t("audit.key"), required=True)),
            ),
        ),
    )
    return Page(t("audit.trust"), body)


def render_check_page(view: PageView, result: LogCheck, return_path: str) -> Page:
    """What a reading of the whole log found."""
    t = view.t
    notice_kind, verdict = ("good", t("audit.whole")) if result.ok else ("bad", t("audit.broken"))
    signature_text = t("audit.is_signed") if result.signed else t("audit.not_signed")
    body = join_html(
        notice(notice_kind, join_html(badge(view, "ok" if result.ok else "alarm"), " ", verdict), result.finding),
        card(
            t("audit.result"),
            fact_list(
                [
                    (t("audit.read"), view.number(result.size)),
                    (t("audit.under"), view.number(result.sealed)),
                    (t("audit.checkpoint"), view.number(result.checkpoint)),
                    (t("audit.signature"), signature_text if result.checkpoint else t("audit.no_checkpoint")),
                    (t("audit.root"), h.code(result.root, dir="ltr") if result.root else ""),
                    (t("audit.origin"), h.code(result.origin, dir="ltr")),
                ]
            ),
        ),
        h.p(h.a(t("console.go_back"), href=return_path, class_="button")),
    )
    return Page(t("audit.verify"), body)


def render_checkpoints_page(view: PageView) -> Page:
    """The signed statements of how long the log was, and its root then."""
    t = view.t
    checkpoints: Sequence[SignedCheckpoint] = view.here.audit.checkpoints(
        limit=_PAGE_SIZE, before=view.count("page", 0)
    )
    columns = (
        ColumnHeader(t("audit.number"), "n"),
        ColumnHeader(t("audit.events"), "n"),
        t("console.when"),
        t("audit.root"),
    )
    rows = [
        TableRow(
            (
                h.a(view.number(checkpoint.number), href=build_url(f"audit/checkpoints/{checkpoint.number}")),
                view.number(checkpoint.size),
                view.when(checkpoint.at),
                h.code(checkpoint.root, dir="ltr"),
            ),
            id=f"c{checkpoint.number}",
        )
        for checkpoint in checkpoints
    ]
    next_page = str(checkpoints[-1].number) if len(checkpoints) == _PAGE_SIZE and checkpoints[-1].number > 1 else ""
    empty_list = empty_state(view, t("audit.no_checkpoint"), t("audit.sealing"), "falaj audit seal")
    body = join_html(table(view, columns, rows, t("audit.checkpoints")), pager(view, next_page)) if rows else empty_list
    return Page(t("audit.checkpoints"), body)


def render_checkpoint_page(view: PageView) -> Page:
    """One checkpoint as it was signed, and that the log of today begins with the log of then."""
    t, number_text = view.t, view.args["number"]
    crumbs = ((t("audit.checkpoints"), build_url("audit/checkpoints")),)
    before = 0 if number_text == "newest" else parse_checkpoint_number(number_text) + 1
    checkpoints: Sequence[SignedCheckpoint] = view.here.audit.checkpoints(limit=1, before=before)
    if not checkpoints:
        return Page(
            t("audit.checkpoint"),
            empty_state(view, t("audit.no_checkpoint"), t("audit.sealing"), _SEAL_COMMAND),
            crumbs,
        )
    checkpoint = checkpoints[0]
    if before and checkpoint.number != before - 1:
        raise NotFound(f"the log has no checkpoint {before - 1} yet", "see the list of checkpoints")
    body = join_html(
        fact_list(
            [
                (t("audit.events"), view.number(checkpoint.size)),
                (t("console.when"), view.when(checkpoint.at)),
                (t("audit.root"), h.code(checkpoint.root, dir="ltr")),
                (t("audit.key"), h.code(checkpoint.key, dir="ltr")),
                (t("audit.previous"), h.code(checkpoint.previous, dir="ltr") if checkpoint.previous else ""),
            ]
        ),
        card(t("audit.growth"), view.part(lambda: _render_growth(view, checkpoint))),
        card(t("audit.note"), h.pre(checkpoint.note, tabindex="0")),
    )
    return Page(t("audit.checkpoint_n", number=checkpoint.number), body, crumbs)


def download_verifier(view: PageView) -> FileDownload:
    """The offline verifier, one file that needs nothing of ours."""
    return FileDownload("falaj_verify.py", b"".join(view.here.audit.verifier()))


_SEAL_COMMAND = "falaj audit seal"


def parse_checkpoint_number(number_text: str) -> int:
    """The number of a checkpoint in an address."""
    if not number_text.isdecimal() or len(number_text) > 12:
        raise NotFound("there is no such checkpoint", "see the list of checkpoints")
    return int(number_text)


def _render_newest(view: PageView) -> Html:
    t = view.t
    checkpoints = view.here.audit.checkpoints(limit=1)
    if not checkpoints:
        return h.p(t("audit.no_checkpoint"), class_="soft")
    checkpoint = checkpoints[0]
    link = h.a(view.number(checkpoint.number), href=build_url(f"audit/checkpoints/{checkpoint.number}"))
    return fact_list(
        {
            t("audit.number"): link,
            t("audit.events"): view.number(checkpoint.size),
            t("console.when"): view.ago(checkpoint.at),
        }
    )


def _render_growth(view: PageView, checkpoint: SignedCheckpoint) -> Html:
    """Proved here and now, from both roots and the hashes between them."""
    t = view.t
    newest: SignedCheckpoint = view.here.audit.checkpoints(limit=1)[0]
    if newest.size == checkpoint.size:
        return h.p(t("audit.is_newest"), class_="soft")
    proof: ConsistencyProof = view.here.audit.consistency(checkpoint.size, newest.size)
    hashes = [bytes.fromhex(hash_text) for hash_text in proof.hashes]
    is_consistent = verify_consistency(
        checkpoint.size, newest.size, decode_base64(checkpoint.root), decode_base64(newest.root), hashes
    )
    notice_kind, verdict = (
        ("good", t("audit.grew", old=checkpoint.size, new=newest.size))
        if is_consistent
        else ("bad", t("audit.rewritten"))
    )
    hash_list = h.details(h.summary(t("audit.hashes", n=len(hashes))), h.pre("\n".join(proof.hashes), tabindex="0"))
    return join_html(
        notice(notice_kind, join_html(badge(view, "ok" if is_consistent else "alarm"), " ", verdict)), hash_list
    )


def render_unfinished_page(view: PageView, intents: Sequence[UnfinishedIntent], return_path: str) -> Page:
    """Acts without an end; whoever asks first lets the whole log be read, so it is a button and no part of a page."""
    t = view.t
    rows = [
        (
            h.a(view.when(intent.at), href=build_url(f"audit/event/{intent.id}")),
            h.bdi(intent.actor),
            h.code(intent.verb, dir="ltr"),
            ref_link(view, intent.subject),
        )
        for intent in intents[:_PAGE_SIZE]
    ]
    headers = (t("console.when"), t("console.who"), t("audit.verb"), t("audit.subject"))
    result = table(view, headers, rows, t("audit.unfinished")) if rows else notice("good", t("audit.all_finished"))
    return Page(
        t("audit.unfinished"), join_html(result, h.p(h.a(t("console.go_back"), href=return_path, class_="button")))
    )
