"""Whether the log is whole: checkpoints, "verify now", growth, acts without an end, and evidence to take away."""

from collections.abc import Sequence

from falaj.audit.merkle import check_consistency
from falaj.audit.note import unb64
from falaj.audit.records import Check, Checkpoint, Consistency, Intent
from falaj.console.markup import Html, h, join
from falaj.console.page import File, Page, address
from falaj.console.parts import Column, Field, Row, action, badge, card, cards, empty, facts, notice, pager, ref, table
from falaj.console.view import View
from falaj.core.errors import NotFound

_PAGE = 50
_SPANS = (("day", 1), ("week", 7), ("month", 30), ("year", 365))


def trust(view: View) -> Page:
    """Everything that an auditor does, on one page."""
    t = view.t
    check = action(view, "audit", "check", {}, t("audit.verify"), show=True, primary=True, back=view.link())
    spans = [("0", t("audit.whole_log")), *((str(int(view.now - 86_400 * days)), t.of("audit.span", name))
                                           for name, days in _SPANS)]  # fmt: skip
    export = action(view, "audit", "export", {}, t("audit.export"), file="evidence.zip",
                    fields=(Field("since", t("audit.from"), "select", options=spans),))  # fmt: skip
    seal = action(view, "audit", "seal", {}, t("audit.seal"))
    body = join(
        cards(
            card(t("audit.verify"), h.p(t("audit.verify_hint")), check),
            card(t("audit.evidence"), h.p(t("audit.evidence_hint")), export,
                 h.p(h.a(t("audit.verifier"), href=address("audit/verifier")))),
            card(t("audit.newest"), view.part(lambda: _newest(view)), seal,
                 h.p(h.a(t("audit.checkpoints"), href=address("audit/checkpoints")))),
        ),
        card(t("audit.unfinished"), h.p(t("audit.unfinished_hint")), action(
            view, "audit", "unfinished", {}, t("audit.look"), show=True, back=view.link())),
        card(t("audit.witnesses"), h.p(t("audit.witnesses_hint")), action(
            view, "audit", "enrol", {}, t("audit.enrol"),
            (Field("name", t("console.name"), required=True), Field("key", t("audit.key"), required=True)),
        )),
    )  # fmt: skip
    return Page(t("audit.trust"), body)


def checked(view: View, found: Check, back: str) -> Page:
    """What a reading of the whole log found."""
    t = view.t
    kind, words = ("good", t("audit.whole")) if found.ok else ("bad", t("audit.broken"))
    sealed = t("audit.is_signed") if found.signed else t("audit.not_signed")
    body = join(
        notice(kind, join(badge(view, "ok" if found.ok else "alarm"), " ", words), found.finding),
        card(t("audit.result"), facts([
            (t("audit.read"), view.number(found.size)), (t("audit.under"), view.number(found.sealed)),
            (t("audit.checkpoint"), view.number(found.checkpoint)),
            (t("audit.signature"), sealed if found.checkpoint else t("audit.no_checkpoint")),
            (t("audit.root"), h.code(found.root, dir="ltr") if found.root else ""),
            (t("audit.origin"), h.code(found.origin, dir="ltr")),
        ])),
        h.p(h.a(t("console.go_back"), href=back, class_="button")),
    )  # fmt: skip
    return Page(t("audit.verify"), body)


def checkpoints(view: View) -> Page:
    """The signed statements of how long the log was, and its root then."""
    t = view.t
    found: Sequence[Checkpoint] = view.here.audit.checkpoints(limit=_PAGE, before=view.count("page", 0))
    columns = (Column(t("audit.number"), "n"), Column(t("audit.events"), "n"), t("console.when"), t("audit.root"))
    rows = [
        Row((h.a(view.number(one.number), href=address(f"audit/checkpoints/{one.number}")), view.number(one.size),
             view.when(one.at), h.code(one.root, dir="ltr")), id=f"c{one.number}")
        for one in found
    ]  # fmt: skip
    more = str(found[-1].number) if len(found) == _PAGE and found[-1].number > 1 else ""
    none = empty(view, t("audit.no_checkpoint"), t("audit.sealing"), "falaj audit seal")
    body = join(table(view, columns, rows, t("audit.checkpoints")), pager(view, more)) if rows else none
    return Page(t("audit.checkpoints"), body)


def checkpoint(view: View) -> Page:
    """One checkpoint as it was signed, and that the log of today begins with the log of then."""
    t, named = view.t, view.args["number"]
    crumbs = ((t("audit.checkpoints"), address("audit/checkpoints")),)
    before = 0 if named == "newest" else view_number(named) + 1
    found: Sequence[Checkpoint] = view.here.audit.checkpoints(limit=1, before=before)
    if not found:
        return Page(t("audit.checkpoint"), empty(view, t("audit.no_checkpoint"), t("audit.sealing"), _SEAL), crumbs)
    one = found[0]
    if before and one.number != before - 1:
        raise NotFound(f"the log has no checkpoint {before - 1} yet", "see the list of checkpoints")
    body = join(
        facts([
            (t("audit.events"), view.number(one.size)), (t("console.when"), view.when(one.at)),
            (t("audit.root"), h.code(one.root, dir="ltr")), (t("audit.key"), h.code(one.key, dir="ltr")),
            (t("audit.previous"), h.code(one.previous, dir="ltr") if one.previous else ""),
        ]),
        card(t("audit.growth"), view.part(lambda: _growth(view, one))),
        card(t("audit.note"), h.pre(one.note, tabindex="0")),
    )  # fmt: skip
    return Page(t("audit.checkpoint_n", number=one.number), body, crumbs)


def verifier(view: View) -> File:
    """The offline verifier, one file that needs nothing of ours."""
    return File("falaj_verify.py", b"".join(view.here.audit.verifier()))


_SEAL = "falaj audit seal"


def view_number(text: str) -> int:
    """The number of a checkpoint in an address."""
    if not text.isdecimal() or len(text) > 12:
        raise NotFound("there is no such checkpoint", "see the list of checkpoints")
    return int(text)


def _newest(view: View) -> Html:
    t = view.t
    found = view.here.audit.checkpoints(limit=1)
    if not found:
        return h.p(t("audit.no_checkpoint"), class_="soft")
    one = found[0]
    link = h.a(view.number(one.number), href=address(f"audit/checkpoints/{one.number}"))
    return facts(
        {t("audit.number"): link, t("audit.events"): view.number(one.size), t("console.when"): view.ago(one.at)}
    )


def _growth(view: View, one: Checkpoint) -> Html:
    """Proved here and now, from both roots and the hashes between them."""
    t = view.t
    newest: Checkpoint = view.here.audit.checkpoints(limit=1)[0]
    if newest.size == one.size:
        return h.p(t("audit.is_newest"), class_="soft")
    proof: Consistency = view.here.audit.consistency(one.size, newest.size)
    hashes = [bytes.fromhex(each) for each in proof.hashes]
    grown = check_consistency(one.size, newest.size, unb64(one.root), unb64(newest.root), hashes)
    kind, words = ("good", t("audit.grew", old=one.size, new=newest.size)) if grown else ("bad", t("audit.rewritten"))
    shown = h.details(h.summary(t("audit.hashes", n=len(hashes))), h.pre("\n".join(proof.hashes), tabindex="0"))
    return join(notice(kind, join(badge(view, "ok" if grown else "alarm"), " ", words)), shown)


def unfinished(view: View, found: Sequence[Intent], back: str) -> Page:
    """Acts without an end; whoever asks first lets the whole log be read, so it is a button and no part of a page."""
    t = view.t
    rows = [
        (h.a(view.when(one.at), href=address(f"audit/event/{one.id}")), h.bdi(one.actor), h.code(one.verb, dir="ltr"),
         ref(view, one.subject))
        for one in found[:_PAGE]
    ]  # fmt: skip
    heads = (t("console.when"), t("console.who"), t("audit.verb"), t("audit.subject"))
    told = table(view, heads, rows, t("audit.unfinished")) if rows else notice("good", t("audit.all_finished"))
    return Page(t("audit.unfinished"), join(told, h.p(h.a(t("console.go_back"), href=back, class_="button"))))
