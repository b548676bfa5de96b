"""The shelf: what the parts of the catalog share. Heads, versions, aliases, and how a record is read as one.

A name's head is its one mutable record (version ""): `newest`, `count`, `aliases`, `about`, `tags`, and for each alias
the `trail` of versions it meant before. Every move of an alias is an event `catalog.point`; those are its history.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from falaj.catalog.lifecycle_records import NameView
from falaj.catalog.records import VERSION_KINDS, CatalogVersion, ModelCard
from falaj.content.records import TableDescription
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid, NotFound, StaleRevision
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.govern.approvals import ApprovalService
from falaj.govern.destruction_checks import DestructionChecks
from falaj.govern.duty_facts import EVENTS_FIELD
from falaj.govern.keyring import Keyring
from falaj.govern.zones import ZoneService
from falaj.snapshot.records import PublishedTree
from falaj.store.blob_store import BlobStore
from falaj.store.codec import from_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.store.transfers import TransferService

HEAD_TERMS = {"head": "yes"}
"""The term by which the names themselves are found."""
MOVED_TAG = "falaj.at"
"""The tag of a name under which nothing lies: it says which one it stands for since that was renamed."""
FINDABLE_FIELD = "findable"
"""What a head says of itself when every tombstone of its versions is found by its reason."""
MAX_TRAIL = 100
_MAX_ALIASES = 1000
_MAX_HEADS, _MAX_SORTED_VERSIONS = 10_000, 1000
_LIST_REF = Ref("list", "catalog", "names")


@dataclass(frozen=True, slots=True)
class AliasMove:
    """Why an alias moves, as its event tells it."""

    how: str
    """tag, untag, promote, emergency, ratify, rollback, lapse or delete."""
    reason: str = ""
    approval: str = ""
    people: tuple[str, ...] = ()
    asker: str = ""
    """Whoever wanted it, where somebody else (a loop) does it."""


class CatalogServiceBase:
    """The furniture every part of the catalog stands on."""

    def __init__(
        self,
        ledger: Ledger,
        blobs: BlobStore,
        transfers: TransferService,
        approvals: ApprovalService,
        keyring: Keyring,
        registries: Mapping[str, str],
        zones: ZoneService,
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

    def _write_head(self, tx: LedgerWriter, name: Ref, changes: Mapping[str, Any], now: float = 0.0) -> LedgerRecord:
        """Change the one mutable record of a name; made at `now` when it is not there."""
        head_record = tx.get(name.bare)
        new_body = {
            "newest": "",
            "count": 0,
            "aliases": {},
            "made_at": now,
            **({} if head_record else {FINDABLE_FIELD: True}),
        }
        body = {**new_body, **(head_record.body if head_record else {}), **changes}
        try:
            return tx.put(name.bare, body, rev=head_record.rev if head_record else None, terms=HEAD_TERMS)
        except Conflict as error:
            raise StaleRevision(f"somebody else wrote {name.bare} at the same moment", "call again", name) from error

    def resolve_version(self, tx: LedgerReader, name: Ref) -> Ref:
        """The version a reference means now, or NotFound."""
        if name.pinned:
            return name
        head_record = tx.get(name.bare)
        head_body = head_record.body if head_record else {}
        alias_version = head_body.get("aliases", {}).get(name.version)
        version = head_body.get("newest") if name.version in ("", "latest") else alias_version
        if not version:
            raise missing_version_error(name)
        return name.at(version)

    def require_live(self, tx: LedgerReader, name: Ref) -> LedgerRecord:
        """The record of a version that can be used, or NotFound."""
        record = tx.get(self.resolve_version(tx, name))
        if record is None or name.kind not in VERSION_KINDS or record.body.get("state") != "live":
            raise (
                missing_version_error(name)
                if record is None or record.body.get("state") != "deleted"
                else deleted_version_error(record)
            )
        return record

    def read_aliases(self, tx: LedgerReader, name: Ref) -> dict[str, str]:
        head_record = tx.get(name.bare)
        return dict(head_record.body.get("aliases", {})) if head_record else {}

    def find_page(
        self,
        tx: LedgerReader,
        ctx: CallContext,
        kind_project_name: tuple[str, str, str],
        terms: Mapping[str, str],
        after: str,
        limit: int,
    ) -> tuple[list[LedgerRecord], str]:
        """Some records that the caller may see, of a kind (or all), project and name; and the next page's cursor."""
        kind, project, name = kind_project_name
        if kind:
            require_catalog_kind(Ref(kind, "any", "any"))
        # The cursor says which kind it belongs to, so that one list can walk through all of them.
        cursor_kind, _, cursor = after.partition(" ")
        kinds = (
            (kind,)
            if kind
            else VERSION_KINDS[VERSION_KINDS.index(cursor_kind) if cursor_kind in VERSION_KINDS else 0 :]
        )
        page_records: list[LedgerRecord] = []
        for page_kind, next_kind in zip(kinds, (*kinds[1:], ""), strict=True):
            page = tx.find(
                page_kind,
                project=project,
                name=name,
                terms=terms,
                scopes=ctx.cells(page_kind),
                after=cursor,
                limit=limit - len(page_records),
            )
            cursor = ""
            page_records += page.records
            if page.next or len(page_records) == limit:
                return page_records, f"{page_kind} {page.next}" if page.next else f"{next_kind} ".lstrip()
        return page_records, ""

    def find_by_head(
        self,
        tx: LedgerReader,
        ctx: CallContext,
        kind_project_name: tuple[str, str, str],
        search_and_alias: tuple[str, str],
        start_and_limit: tuple[str, int],
    ) -> tuple[list[LedgerRecord], str]:
        """The versions that fit, by way of the heads, which know names and aliases; the cursor counts what fits."""
        (search, alias), limit, can_see = (
            search_and_alias,
            start_and_limit[1],
            create_visibility_check(self._ledger, ctx, _LIST_REF),
        )
        start = _parse_page_start(*start_and_limit)
        head_records, _ = self.find_page(tx, ctx, kind_project_name, HEAD_TERMS, "", _MAX_HEADS)
        matching_refs = [
            head.ref.at(version)
            for head in head_records
            if search.casefold() in head.key.name.casefold()
            and (version := head.body["aliases"].get(alias, "") if alias else head.body["newest"])
        ]
        page_records = [tx.need(ref) for ref in matching_refs[start : start + limit] if can_see(str(ref))]
        return page_records, str(start + limit) if start + limit < len(matching_refs) else ""

    def list_versions_of(
        self, tx: LedgerReader, ctx: CallContext, name: Ref, after: str, limit: int
    ) -> tuple[list[LedgerRecord], str]:
        """The versions of one name that stand, the newest first; the cursor is the number of the last one."""
        head_record = tx.get(name)
        next_number = (
            head_record.body.get("count", 0) + 1 if head_record else 0
        )  # a record of another kind has no versions
        upper_number = min(_parse_page_start(after, limit) or next_number, next_number)
        sorted_page, has_more = self.find_page(
            tx, ctx, (name.kind, name.project, name.name), {"live": "yes"}, "", _MAX_SORTED_VERSIONS
        )
        live_versions = iter(
            sorted(
                (
                    version_record
                    for version_record in sorted_page
                    if _get_version_number(version_record) < upper_number
                ),
                key=_get_version_number,
                reverse=True,
            )
        )
        if has_more:  # too many to read all of them for every page
            can_see, refs = (
                create_visibility_check(self._ledger, ctx, _LIST_REF),
                (name.at(f"v{number}") for number in range(upper_number - 1, 0, -1)),
            )
            candidates = (tx.get(ref) for ref in refs if can_see(str(ref)))
            live_versions = (
                version_record
                for version_record in candidates
                if version_record is not None and version_record.body["state"] == "live"
            )
        page_records = list(islice(live_versions, limit + 1))
        return page_records[:limit], str(_get_version_number(page_records[limit - 1])) if len(
            page_records
        ) > limit else ""

    def list_namesakes(
        self, tx: LedgerReader, ctx: CallContext, kind_project_name: tuple[str, str, str], after: str, limit: int
    ) -> tuple[list[LedgerRecord], str]:
        """The same of a name in every kind or project that has it, one after another; the cursor is the last one."""
        kind, project, name = kind_project_name
        require_catalog_kind(Ref(kind or VERSION_KINDS[0], "any", "any"))
        _parse_page_start("", limit)
        # Whoever may see versions need not see the record of their name, and it is not shown.
        heads = [
            head.ref.bare
            for head_kind in ((kind,) if kind else VERSION_KINDS)
            for head in tx.find(head_kind, project=project, name=name, terms=HEAD_TERMS, limit=_MAX_HEADS).records
        ]
        last_ref = Ref.parse(after) if after else None
        start_index = heads.index(last_ref.bare) if last_ref and last_ref.bare in heads else 0
        page_records: list[LedgerRecord] = []
        for position, head in enumerate(heads[start_index:], start_index + 1):
            upper_number = last_ref.version[1:] if last_ref and last_ref.bare == head else ""
            name_records, has_more = self.list_versions_of(tx, ctx, head, upper_number, limit - len(page_records))
            page_records += name_records
            if len(page_records) == limit:
                return page_records, str(page_records[-1].ref) if has_more or position < len(heads) else ""
        return page_records, ""

    def read_trail(self, tx: LedgerReader, name: Ref, alias: str) -> list[str]:
        """The versions an alias meant before, oldest first; what was rolled back is not among them."""
        return list(tx.need(name.bare).body.get("trail", {}).get(alias, ()))

    def move_alias(self, tx: LedgerWriter, name: Ref, alias: str, target_version: str, alias_move: AliasMove) -> str:
        """Let an alias mean version `target_version` (nothing: no version) and say so; gives what it meant before."""
        body = tx.need(name.bare).body
        aliases, trails_by_alias = dict(body.get("aliases", {})), dict(body.get("trail", {}))
        previous_version, trail = str(aliases.pop(alias, "")), list(trails_by_alias.get(alias, ()))
        if target_version == previous_version and alias_move.how != "ratify":
            return previous_version
        if alias_move.how in ("rollback", "lapse") and (target_version in trail or not target_version):
            # Going back forgets what was left, so that going back again goes further back.
            trail = trail[: len(trail) - 1 - trail[::-1].index(target_version)] if target_version else trail
        elif previous_version and previous_version != target_version:
            trail = [*trail, previous_version][-MAX_TRAIL:]
        if target_version:
            aliases[alias] = target_version
        if len(aliases) > _MAX_ALIASES:
            raise Invalid(f"{name.bare} has {_MAX_ALIASES} aliases", "take one away: falaj catalog untag", name)
        self._write_head(tx, name, {"aliases": aliases, "trail": {**trails_by_alias, alias: trail}})
        tx.emit(
            "catalog.point",
            name.at(target_version or previous_version),
            alias=alias,
            to=target_version,
            before=previous_version,
            how=alias_move.how,
            reason=alias_move.reason,
            approval=alias_move.approval,
            people=",".join(alias_move.people),
            asker=alias_move.asker,
        )
        return previous_version

    def update_version(self, tx: LedgerWriter, record: LedgerRecord, **changes: Any) -> LedgerRecord:
        """Change what is known of a version, and neither its label nor how it is found."""
        return tx.put(record.ref, {**record.body, **changes}, rev=record.rev, label=record.label)


def _parse_page_start(cursor: str, limit: int) -> int:
    """The number at which a page begins; Invalid when it is none, or the page too long."""
    if len(cursor) > 18 or not (cursor or "0").isdecimal() or not 0 < limit <= _MAX_HEADS:
        raise Invalid(f"a page of {limit} after {cursor[:80]!r}", f"1 to {_MAX_HEADS}, and the `next` before")
    return int(cursor or 0)


def _get_version_number(version: LedgerRecord) -> int:
    return int(version.key.version[1:])


def create_visibility_check(ledger: Ledger, ctx: CallContext, requested_ref: Ref) -> Callable[[str], bool]:
    """Whether the caller may know of a thing. Who only publishes need not wait for lineage to be loaded."""
    from falaj.audit import lineage_graphs

    return lineage_graphs.create_visibility_check(ledger, ctx, requested_ref)


def missing_version_error(name: Ref) -> NotFound:
    """The one way to say that there is no such version."""
    return NotFound(f"there is no {name}", "falaj catalog list shows what there is", name)


def deleted_version_error(record: LedgerRecord) -> NotFound:
    """The one way to say that a version was deleted."""
    hint = f"falaj catalog show {record.ref} says when, why and by whom"
    return NotFound(f"{record.ref} was deleted", hint, record.ref)


def make_companion_label(label: Label) -> Label:
    """The label of what is written about a version: as hidden, and under none of its terms of keeping."""
    return replace(label, purposes=Label().purposes, holds=frozenset(), min_retain_s=0, max_retain_s=None)


def to_name_view(head: LedgerRecord) -> NameView:
    """A head as its readers see it."""
    body = head.body
    return NameView(
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


def require_catalog_kind(name: Ref) -> None:
    """Invalid unless the catalog keeps such things."""
    if name.kind not in VERSION_KINDS:
        raise Invalid(f"the catalog keeps no {name.kind}", f"it keeps: {', '.join(VERSION_KINDS)}", name)


def to_version(record: LedgerRecord, aliases: Mapping[str, str]) -> CatalogVersion:
    """A record as its readers see it; `aliases` are those of its name."""
    body = record.body
    table, card, notes = body.get("table"), body.get("card"), body.get("notes", {})
    return CatalogVersion(
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
        table=from_plain(TableDescription, table) if table else None,
        card=_merge_card(card, body.get("seen")),
        tags=notes.get("tags", body.get("tags", {})),
        pinned=bool(body.get("pinned")),
        signed=bool(body.get("signature")),
        state=body["state"],
        deleted_by=body.get("deleted_by", ""),
        deleted_at=body.get("deleted_at", 0.0),
        events=body.get(EVENTS_FIELD) or {},
        restricted=record.restricted,
    )


def _merge_card(stored_card: Mapping[str, Any] | None, inspection: Mapping[str, Any] | None) -> ModelCard | None:
    """What a publisher said of a model; of its format, what the platform found where it has looked."""
    card: ModelCard | None = from_plain(ModelCard, stored_card) if stored_card else None
    if inspection is None:
        return card
    return replace(card or ModelCard(), format=inspection["format"], code_bearing=inspection["code_bearing"])


def read_tree(record: LedgerRecord) -> PublishedTree:
    """The snapshot a version holds."""
    body = record.body
    tree: PublishedTree = from_plain(
        PublishedTree,
        {"root": body["root"], "num_files": body["num_files"], "size_bytes": body["size"], "batches": body["batches"]},
    )
    return tree


def choose_read_zone(record: LedgerRecord, ctx: CallContext) -> str:
    """The zone to read a version from: the caller's own where it lies there, else the first."""
    zones = record.body["zones"]
    return ctx.zone if ctx.zone in zones else str(zones[0])
