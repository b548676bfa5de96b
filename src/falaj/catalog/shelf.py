"""The shelf: what the parts of the catalog share. Heads, versions, aliases, and how a record is read as one.

A name's head is its one mutable record (version ""): `newest`, `count`, `aliases`, `about`, `tags`, and for each alias
the `trail` of versions it meant before. Every move of an alias is an event `catalog.point`; those are its history.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from falaj.catalog.life_records import Named
from falaj.catalog.records import KINDS, Card, Version
from falaj.content.records import Table
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid, NotFound, Stale
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.govern.approvals import Approvals
from falaj.govern.destruction import DestructionChecks
from falaj.govern.duty_facts import EVENTS
from falaj.govern.keys import Keyring
from falaj.govern.zones import Zones
from falaj.snapshot.records import Tree
from falaj.store.blobs import BlobStore
from falaj.store.codec import from_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record
from falaj.store.transfer import Transfers

HEAD = {"head": "yes"}
"""The term by which the names themselves are found."""
AT = "falaj.at"
"""The tag of a name under which nothing lies: it says which one it stands for since that was renamed."""
FINDABLE = "findable"
"""What a head says of itself when every tombstone of its versions is found by its reason."""
MOST_TRAIL = 100
_MOST_ALIASES = 1000
_MOST_HEADS, _MOST_SORTED = 10_000, 1000
_LIST = Ref("list", "catalog", "names")


@dataclass(frozen=True, slots=True)
class Act:
    """Why an alias moves, as its event tells it."""

    how: str
    """tag, untag, promote, emergency, ratify, rollback, lapse or delete."""
    reason: str = ""
    approval: str = ""
    people: tuple[str, ...] = ()
    asker: str = ""
    """Whoever wanted it, where somebody else (a loop) does it."""


class Shelf:
    """The furniture every part of the catalog stands on."""

    def __init__(
        self,
        ledger: Ledger,
        blobs: BlobStore,
        transfers: Transfers,
        approvals: Approvals,
        keyring: Keyring,
        registries: Mapping[str, str],
        zones: Zones,
    ) -> None:
        """`registries` says under whose law hosts stand that versions are carried to."""
        self._zones = zones
        self._ledger = ledger
        self._blobs = blobs
        self._transfers = transfers
        self._approvals = approvals
        self._keyring = keyring
        self._registries = registries
        self.destruction = DestructionChecks(ledger, zones, approvals, keyring)

    def _write_head(self, tx: Writer, name: Ref, changes: Mapping[str, Any], now: float = 0.0) -> Record:
        """Change the one mutable record of a name; made at `now` when it is not there."""
        head = tx.get(name.bare)
        new = {"newest": "", "count": 0, "aliases": {}, "made_at": now, **({} if head else {FINDABLE: True})}
        body = {**new, **(head.body if head else {}), **changes}
        try:
            return tx.put(name.bare, body, rev=head.rev if head else None, terms=HEAD)
        except Conflict as error:
            raise Stale(f"somebody else wrote {name.bare} at the same moment", "call again", name) from error

    def _pinned(self, tx: Reader, name: Ref) -> Ref:
        """The version a reference means now, or NotFound."""
        if name.pinned:
            return name
        head = tx.get(name.bare)
        body = head.body if head else {}
        aliased = body.get("aliases", {}).get(name.version)
        version = body.get("newest") if name.version in ("", "latest") else aliased
        if not version:
            raise missing(name)
        return name.at(version)

    def _live(self, tx: Reader, name: Ref) -> Record:
        """The record of a version that can be used, or NotFound."""
        record = tx.get(self._pinned(tx, name))
        if record is None or name.kind not in KINDS or record.body.get("state") != "live":
            raise missing(name) if record is None or record.body.get("state") != "deleted" else gone(record)
        return record

    def _aliases(self, tx: Reader, name: Ref) -> dict[str, str]:
        head = tx.get(name.bare)
        return dict(head.body.get("aliases", {})) if head else {}

    def _page(
        self, tx: Reader, ctx: Context, of: tuple[str, str, str], terms: Mapping[str, str], after: str, limit: int
    ) -> tuple[list[Record], str]:
        """Some records that the caller may see, of a kind (or all), project and name; and the next page's cursor."""
        kind, project, name = of
        if kind:
            check_kind(Ref(kind, "any", "any"))
        # The cursor says which kind it belongs to, so that one list can walk through all of them.
        begun, _, cursor = after.partition(" ")
        kinds = (kind,) if kind else KINDS[KINDS.index(begun) if begun in KINDS else 0 :]
        found: list[Record] = []
        for each, following in zip(kinds, (*kinds[1:], ""), strict=True):
            page = tx.find(
                each,
                project=project,
                name=name,
                terms=terms,
                cells=ctx.cells(each),
                after=cursor,
                limit=limit - len(found),
            )
            cursor = ""
            found += page.records
            if page.next or len(found) == limit:
                return found, f"{each} {page.next}" if page.next else f"{following} ".lstrip()
        return found, ""

    def _chosen(
        self, tx: Reader, ctx: Context, of: tuple[str, str, str], wanted: tuple[str, str], page: tuple[str, int]
    ) -> tuple[list[Record], str]:
        """The versions that fit, by way of the heads, which know names and aliases; the cursor counts what fits."""
        (search, alias), limit, sees = wanted, page[1], sight(self._ledger, ctx, _LIST)
        start = _after(*page)
        heads, _ = self._page(tx, ctx, of, HEAD, "", _MOST_HEADS)
        fits = [
            head.ref.at(version)
            for head in heads
            if search.casefold() in head.key.name.casefold()
            and (version := head.body["aliases"].get(alias, "") if alias else head.body["newest"])
        ]
        some = [tx.need(ref) for ref in fits[start : start + limit] if sees(str(ref))]
        return some, str(start + limit) if start + limit < len(fits) else ""

    def _numbered(self, tx: Reader, ctx: Context, name: Ref, after: str, limit: int) -> tuple[list[Record], str]:
        """The versions of one name that stand, the newest first; the cursor is the number of the last one."""
        head = tx.get(name)
        top = head.body.get("count", 0) + 1 if head else 0  # a record of another kind has no versions
        below = min(_after(after, limit) or top, top)
        found, more = self._page(tx, ctx, (name.kind, name.project, name.name), {"live": "yes"}, "", _MOST_SORTED)
        live = iter(sorted((one for one in found if _number(one) < below), key=_number, reverse=True))
        if more:  # too many to read all of them for every page
            sees, refs = sight(self._ledger, ctx, _LIST), (name.at(f"v{number}") for number in range(below - 1, 0, -1))
            each = (tx.get(ref) for ref in refs if sees(str(ref)))
            live = (one for one in each if one is not None and one.body["state"] == "live")
        some = list(islice(live, limit + 1))
        return some[:limit], str(_number(some[limit - 1])) if len(some) > limit else ""

    def _namesakes(
        self, tx: Reader, ctx: Context, of: tuple[str, str, str], after: str, limit: int
    ) -> tuple[list[Record], str]:
        """The same of a name in every kind or project that has it, one after another; the cursor is the last one."""
        kind, project, name = of
        check_kind(Ref(kind or KINDS[0], "any", "any"))
        _after("", limit)
        # Whoever may see versions need not see the record of their name, and it is not shown.
        heads = [
            head.ref.bare
            for each in ((kind,) if kind else KINDS)
            for head in tx.find(each, project=project, name=name, terms=HEAD, limit=_MOST_HEADS).records
        ]
        last = Ref.parse(after) if after else None
        begun = heads.index(last.bare) if last and last.bare in heads else 0
        found: list[Record] = []
        for at, head in enumerate(heads[begun:], begun + 1):
            below = last.version[1:] if last and last.bare == head else ""
            some, more = self._numbered(tx, ctx, head, below, limit - len(found))
            found += some
            if len(found) == limit:
                return found, str(found[-1].ref) if more or at < len(heads) else ""
        return found, ""

    def _trail(self, tx: Reader, name: Ref, alias: str) -> list[str]:
        """The versions an alias meant before, oldest first; what was rolled back is not among them."""
        return list(tx.need(name.bare).body.get("trail", {}).get(alias, ()))

    def _point(self, tx: Writer, name: Ref, alias: str, to: str, act: Act) -> str:
        """Let an alias mean version `to` (nothing: no version) and say so; gives what it meant before."""
        body = tx.need(name.bare).body
        aliases, trails = dict(body.get("aliases", {})), dict(body.get("trail", {}))
        before, trail = str(aliases.pop(alias, "")), list(trails.get(alias, ()))
        if to == before and act.how != "ratify":
            return before
        if act.how in ("rollback", "lapse") and (to in trail or not to):
            # Going back forgets what was left, so that going back again goes further back.
            trail = trail[: len(trail) - 1 - trail[::-1].index(to)] if to else trail
        elif before and before != to:
            trail = [*trail, before][-MOST_TRAIL:]
        if to:
            aliases[alias] = to
        if len(aliases) > _MOST_ALIASES:
            raise Invalid(f"{name.bare} has {_MOST_ALIASES} aliases", "take one away: falaj catalog untag", name)
        self._write_head(tx, name, {"aliases": aliases, "trail": {**trails, alias: trail}})
        tx.emit(
            "catalog.point", name.at(to or before), alias=alias, to=to, before=before, how=act.how, reason=act.reason,
            approval=act.approval, people=",".join(act.people), asker=act.asker,
        )  # fmt: skip
        return before

    def _rewrite(self, tx: Writer, record: Record, **changes: Any) -> Record:
        """Change what is known of a version, and neither its label nor how it is found."""
        return tx.put(record.ref, {**record.body, **changes}, rev=record.rev, label=record.label)


def _after(after: str, limit: int) -> int:
    """The number at which a page begins; Invalid when it is none, or the page too long."""
    if len(after) > 18 or not (after or "0").isdecimal() or not 0 < limit <= _MOST_HEADS:
        raise Invalid(f"a page of {limit} after {after[:80]!r}", f"1 to {_MOST_HEADS}, and the `next` before")
    return int(after or 0)


def _number(version: Record) -> int:
    return int(version.key.version[1:])


def sight(ledger: Ledger, ctx: Context, asked: Ref) -> Callable[[str], bool]:
    """Whether the caller may know of a thing. Who only publishes need not wait for lineage to be loaded."""
    from falaj.audit import graphs

    return graphs.sight(ledger, ctx, asked)


def missing(name: Ref) -> NotFound:
    """The one way to say that there is no such version."""
    return NotFound(f"there is no {name}", "falaj catalog list shows what there is", name)


def gone(record: Record) -> NotFound:
    """The one way to say that a version was deleted."""
    hint = f"falaj catalog show {record.ref} says when, why and by whom"
    return NotFound(f"{record.ref} was deleted", hint, record.ref)


def open_label(label: Label) -> Label:
    """The label of what is written about a version: as hidden, and under none of its terms of keeping."""
    return replace(label, purposes=Label().purposes, holds=frozenset(), min_retain_s=0, max_retain_s=None)


def as_named(head: Record) -> Named:
    """A head as its readers see it."""
    body = head.body
    return Named(
        head.ref.bare,
        body["newest"],
        body["count"],
        body.get("aliases", {}),
        body.get("about", ""),
        body.get("tags", {}),
        head.author,
        body.get("made_at", head.at),
        head.at,
    )


def check_kind(name: Ref) -> None:
    """Invalid unless the catalog keeps such things."""
    if name.kind not in KINDS:
        raise Invalid(f"the catalog keeps no {name.kind}", f"it keeps: {', '.join(KINDS)}", name)


def as_version(record: Record, aliases: Mapping[str, str]) -> Version:
    """A record as its readers see it; `aliases` are those of its name."""
    body = record.body
    table, card, notes = body.get("table"), body.get("card"), body.get("notes", {})
    return Version(
        record.ref,
        body["root"],
        body["num_files"],
        body["size"],
        body["stage"],
        record.label,
        tuple(body["zones"]),
        record.author,
        body["made_at"],
        message=notes.get("message", body.get("message", "")),
        aliases=tuple(sorted(alias for alias, version in aliases.items() if version == record.key.version)),
        inputs={role: Ref.parse(ref) for role, ref in body.get("inputs", {}).items()},
        table=from_plain(Table, table) if table else None,
        card=_card(card, body.get("seen")),
        tags=notes.get("tags", body.get("tags", {})),
        pinned=bool(body.get("pinned")),
        signed=bool(body.get("signature")),
        state=body["state"],
        deleted_by=body.get("deleted_by", ""),
        deleted_at=body.get("deleted_at", 0.0),
        events=body.get(EVENTS) or {},
        restricted=record.restricted,
    )


def _card(told: Mapping[str, Any] | None, seen: Mapping[str, Any] | None) -> Card | None:
    """What a publisher said of a model; of its format, what the platform found where it has looked."""
    card: Card | None = from_plain(Card, told) if told else None
    if seen is None:
        return card
    return replace(card or Card(), format=seen["format"], code_bearing=seen["code_bearing"])


def tree_of(record: Record) -> Tree:
    """The snapshot a version holds."""
    body = record.body
    tree: Tree = from_plain(
        Tree,
        {"root": body["root"], "num_files": body["num_files"], "size_bytes": body["size"], "batches": body["batches"]},
    )
    return tree


def nearest(record: Record, ctx: Context) -> str:
    """The zone to read a version from: the caller's own where it lies there, else the first."""
    zones = record.body["zones"]
    return ctx.zone if ctx.zone in zones else str(zones[0])
