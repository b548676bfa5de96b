"""One event: all it says, the decision it was allowed by, and the proof that it is in the log."""

import json
from dataclasses import asdict

from falaj.audit.note import parse, unb64
from falaj.audit.records import Entry, Proof
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import File, Page, address
from falaj.console.pages.audit.path import path_of
from falaj.console.parts import Column, badge, card, copyable, facts, notice, ref, table, tabs
from falaj.console.view import View
from falaj.core.errors import NotFound

_WITH_LINEAGE = ("dataset", "model")


def event(view: View) -> Page:
    """All fields, or the proof."""
    t, one = view.t, _entry(view)
    head = tabs(view, (("details", t("console.details")), ("proof", t("audit.proof"))))
    body = view.part(lambda: _proof(view, one)) if view.query("tab") == "proof" else _details(view, one)
    return Page(h.bdi(one.verb), join(head, body))


def proof_file(view: View) -> File:
    """The proof for an auditor, who checks it with the offline verifier."""
    one = _entry(view)
    proof: Proof = view.here.audit.prove(one.id)
    return File(f"proof-{one.id}.json", json.dumps(asdict(proof), ensure_ascii=False).encode())


def _entry(view: View) -> Entry:
    """By its id; `newest` is the last one before this look."""
    if view.args["id"] != "newest":
        found: Entry = view.here.audit.show(view.args["id"])
        return found
    entries = view.here.audit.log(limit=1).entries
    if not entries:
        raise NotFound("the log is empty", "do something first")
    newest: Entry = entries[0]
    return newest


def _details(view: View, one: Entry) -> Html:
    t, said = view.t, {k: v for k, v in (one.body or {}).items() if k != "facts"}
    inputs = h.ul([h.li(ref(view, each)) for each in one.inputs]) if one.inputs else EMPTY
    return join(
        card(t("console.details"), facts([
            (t("console.when"), view.when(one.at)),
            (t("console.who"), h.a(h.bdi(one.actor), href=address("audit", {"actor": one.actor}))),
            (t("audit.behalf"), h.bdi(one.behalf) if one.behalf else ""), (t("audit.subject"), ref(view, one.subject)),
            (t("console.zone"), h.bdi(one.zone)), (t("audit.inputs"), inputs),
            (t("audit.request"), h.a(h.bdi(one.request), href=address("audit", {"about": one.request}))),
            (t("audit.id"), h.code(one.id, dir="ltr")),
            (t("audit.sealed"), t("audit.sealed_long") if one.sealed else ""),
            (t("console.lineage"), _lineage(view, one)),
        ])),
        card(t("audit.says"), facts([(h.bdi(k), h.bdi(v)) for k, v in said.items()])) if said else None,
        card(t("audit.decision"), _decision(view, one)),
    )  # fmt: skip


def _lineage(view: View, one: Entry) -> Html:
    if one.subject.kind not in _WITH_LINEAGE:
        return EMPTY
    return h.a(view.t("audit.lineage"), href=address(f"catalog/{one.subject}/lineage"))


def _decision(view: View, one: Entry) -> Html:
    t = view.t
    if not one.policy:
        return h.p(t("audit.no_decision"), class_="soft")
    rules = [h.a(h.bdi(each, class_="tag"), href=address(f"policy/policy:policies/{each}")) for each in one.rules]
    again = address("policy/explain", {"what": one.id})
    return join(
        facts({t("audit.rules"): join(rules), t("audit.policy"): h.code(one.policy, dir="ltr")}),
        h.p(h.a(t("audit.replay"), href=again, class_="button")) if "facts" in (one.body or {}) else None,
    )


def _proof(view: View, one: Entry) -> Html:
    t = view.t
    proof: Proof = view.here.audit.prove(one.id)
    signed, steps = parse(proof.note), path_of(proof.leaf, proof.index, proof.size, proof.hashes)
    root = unb64(signed.root).hex()
    whole = (steps[-1].node if steps else proof.leaf) == root
    told = ("good", t("audit.proven")) if whole else ("bad", t("audit.not_proven"))
    rows = [
        (number, t("audit.left") if each.left else t("audit.right"), _hash(each.sibling), _hash(each.node))
        for number, each in enumerate(steps, start=1)
    ]
    columns = (Column(t("audit.step"), "n"), t("audit.side"), t("audit.sibling"), t("audit.together"))
    return join(
        notice(told[0], join(badge(view, "ok" if whole else "alarm"), " ", told[1])),
        h.div(
            h.a(t("audit.download_proof"), href=address(f"audit/event/{one.id}/proof"), class_="button primary"),
            h.a(t("audit.verifier"), href=address("audit/verifier"), class_="button"), class_="actions",
        ),
        copyable(view, f"python falaj_verify.py proof-{one.id}.json --key {signed.key}"),
        facts([
            (t("audit.place"), t("audit.place_of", index=proof.index + 1, size=proof.size)),
            (t("audit.checkpoint"), h.a(signed.number, href=address(f"audit/checkpoints/{signed.number}"))),
            (t("audit.leaf"), _hash(proof.leaf)), (t("audit.root"), _hash(root)),
        ]),
        table(view, columns, rows, t("audit.path")) if rows else h.p(t("audit.alone"), class_="soft"),
    )  # fmt: skip


def _hash(text: str) -> Html:
    """The beginning of a hash; all of it when one points at it."""
    return h.code(f"{text[:20]}…", dir="ltr", title=text)
