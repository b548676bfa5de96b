"""One event: all it says, the decision it was allowed by, and the proof that it is in the log."""

import json
from dataclasses import asdict

from falaj.audit.records import InclusionProof, LogEntry
from falaj.audit.signed_note import decode_base64, parse_checkpoint
from falaj.console.components import ColumnHeader, badge, card, copyable_code, fact_list, notice, ref_link, table, tabs
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import FileDownload, Page, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.audit.proof_path import compute_path
from falaj.core.errors import NotFound

_LINEAGE_KINDS = ("dataset", "model")


def render_entry_page(view: PageView) -> Page:
    """All fields, or the proof."""
    t, entry = view.t, _find_entry(view)
    tab_bar = tabs(view, (("details", t("console.details")), ("proof", t("audit.proof"))))
    body = (
        view.part(lambda: _render_proof(view, entry)) if view.query("tab") == "proof" else _render_details(view, entry)
    )
    return Page(h.bdi(entry.verb), join_html(tab_bar, body))


def download_proof(view: PageView) -> FileDownload:
    """The proof for an auditor, who checks it with the offline verifier."""
    entry = _find_entry(view)
    proof: InclusionProof = view.here.audit.prove(entry.id)
    return FileDownload(f"proof-{entry.id}.json", json.dumps(asdict(proof), ensure_ascii=False).encode())


def _find_entry(view: PageView) -> LogEntry:
    """By its id; `newest` is the last one before this look."""
    if view.args["id"] != "newest":
        entry: LogEntry = view.here.audit.show(view.args["id"])
        return entry
    entries = view.here.audit.log(limit=1).entries
    if not entries:
        raise NotFound("the log is empty", "do something first")
    newest: LogEntry = entries[0]
    return newest


def _render_details(view: PageView, entry: LogEntry) -> Html:
    t, body_fields = (
        view.t,
        {field_name: field_value for field_name, field_value in (entry.body or {}).items() if field_name != "facts"},
    )
    inputs = h.ul([h.li(ref_link(view, input_ref)) for input_ref in entry.inputs]) if entry.inputs else EMPTY
    return join_html(
        card(
            t("console.details"),
            fact_list(
                [
                    (t("console.when"), view.when(entry.at)),
                    (t("console.who"), h.a(h.bdi(entry.actor), href=build_url("audit", {"actor": entry.actor}))),
                    (t("audit.behalf"), h.bdi(entry.behalf) if entry.behalf else ""),
                    (t("audit.subject"), ref_link(view, entry.subject)),
                    (t("console.zone"), h.bdi(entry.zone)),
                    (t("audit.inputs"), inputs),
                    (t("audit.request"), h.a(h.bdi(entry.request), href=build_url("audit", {"about": entry.request}))),
                    (t("audit.id"), h.code(entry.id, dir="ltr")),
                    (t("audit.sealed"), t("audit.sealed_long") if entry.sealed else ""),
                    (t("console.lineage"), _render_lineage_link(view, entry)),
                ]
            ),
        ),
        card(
            t("audit.says"),
            fact_list([(h.bdi(field_name), h.bdi(field_value)) for field_name, field_value in body_fields.items()]),
        )
        if body_fields
        else None,
        card(t("audit.decision"), _render_decision(view, entry)),
    )


def _render_lineage_link(view: PageView, entry: LogEntry) -> Html:
    if entry.subject.kind not in _LINEAGE_KINDS:
        return EMPTY
    return h.a(view.t("audit.lineage"), href=build_url(f"catalog/{entry.subject}/lineage"))


def _render_decision(view: PageView, entry: LogEntry) -> Html:
    t = view.t
    if not entry.policy:
        return h.p(t("audit.no_decision"), class_="soft")
    rules = [
        h.a(h.bdi(rule_name, class_="tag"), href=build_url(f"policy/policy:policies/{rule_name}"))
        for rule_name in entry.rules
    ]
    replay_url = build_url("policy/explain", {"what": entry.id})
    return join_html(
        fact_list({t("audit.rules"): join_html(rules), t("audit.policy"): h.code(entry.policy, dir="ltr")}),
        h.p(h.a(t("audit.replay"), href=replay_url, class_="button")) if "facts" in (entry.body or {}) else None,
    )


def _render_proof(view: PageView, entry: LogEntry) -> Html:
    t = view.t
    proof: InclusionProof = view.here.audit.prove(entry.id)
    signed_note, steps = parse_checkpoint(proof.note), compute_path(proof.leaf, proof.index, proof.size, proof.hashes)
    root = decode_base64(signed_note.root).hex()
    is_proven = (steps[-1].node if steps else proof.leaf) == root
    verdict = ("good", t("audit.proven")) if is_proven else ("bad", t("audit.not_proven"))
    rows = [
        (
            number,
            t("audit.left") if step.left else t("audit.right"),
            _render_hash(step.sibling),
            _render_hash(step.node),
        )
        for number, step in enumerate(steps, start=1)
    ]
    columns = (ColumnHeader(t("audit.step"), "n"), t("audit.side"), t("audit.sibling"), t("audit.together"))
    return join_html(
        notice(verdict[0], join_html(badge(view, "ok" if is_proven else "alarm"), " ", verdict[1])),
        h.div(
            h.a(t("audit.download_proof"), href=build_url(f"audit/event/{entry.id}/proof"), class_="button primary"),
            h.a(t("audit.verifier"), href=build_url("audit/verifier"), class_="button"),
            class_="actions",
        ),
        copyable_code(view, f"python falaj_verify.py proof-{entry.id}.json --key {signed_note.key}"),
        fact_list(
            [
                (t("audit.place"), t("audit.place_of", index=proof.index + 1, size=proof.size)),
                (
                    t("audit.checkpoint"),
                    h.a(signed_note.number, href=build_url(f"audit/checkpoints/{signed_note.number}")),
                ),
                (t("audit.leaf"), _render_hash(proof.leaf)),
                (t("audit.root"), _render_hash(root)),
            ]
        ),
        table(view, columns, rows, t("audit.path")) if rows else h.p(t("audit.alone"), class_="soft"),
    )


def _render_hash(hash_text: str) -> Html:
    """The beginning of a hash; all of it when one points at it."""
    return h.code(f"{hash_text[:20]}…", dir="ltr", title=hash_text)
