"""The shelf: what the parts of the catalog share. Heads, versions, and how a record is read as one."""

from collections.abc import Mapping
from typing import Any

from falaj.catalog.records import KINDS, Card, Table, Version
from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid, NotFound, Stale
from falaj.core.ref import Ref
from falaj.govern.approvals import Approvals
from falaj.govern.keys import Keyring
from falaj.snapshot.records import Tree
from falaj.store.blobs import BlobStore
from falaj.store.codec import from_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record
from falaj.store.transfer import Transfers


class Shelf:
    """The furniture every part of the catalog stands on."""

    def __init__(
        self, ledger: Ledger, blobs: BlobStore, transfers: Transfers, approvals: Approvals, keyring: Keyring
    ) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._transfers = transfers
        self._approvals = approvals
        self._keyring = keyring

    def _write_head(self, tx: Writer, name: Ref, changes: Mapping[str, Any]) -> Record:
        """Change the one mutable record of a name (made when it is not there): newest, count, aliases, about."""
        head = tx.get(name.bare)
        body = {"newest": "", "count": 0, "aliases": {}, **(head.body if head else {}), **changes}
        try:
            return tx.put(name.bare, body, rev=head.rev if head else None)
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
            raise missing(name)
        return record

    def _aliases(self, tx: Reader, name: Ref) -> dict[str, str]:
        head = tx.get(name.bare)
        return dict(head.body.get("aliases", {})) if head else {}


def missing(name: Ref) -> NotFound:
    """The one way to say that there is no such version."""
    return NotFound(f"there is no {name}", "falaj catalog list shows what there is", name)


def check_kind(name: Ref) -> None:
    """Invalid unless the catalog keeps such things."""
    if name.kind not in KINDS:
        raise Invalid(f"the catalog keeps no {name.kind}", f"it keeps: {', '.join(KINDS)}", name)


def as_version(record: Record, aliases: Mapping[str, str]) -> Version:
    """A record as its readers see it; `aliases` are those of its name."""
    body = record.body
    table, card = body.get("table"), body.get("card")
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
        message=body.get("message", ""),
        aliases=tuple(sorted(alias for alias, version in aliases.items() if version == record.key.version)),
        inputs={role: Ref.parse(ref) for role, ref in body.get("inputs", {}).items()},
        table=from_plain(Table, table) if table else None,
        card=from_plain(Card, card) if card else None,
        tags=body.get("tags", {}),
        pinned=bool(body.get("pinned")),
        signed=bool(body.get("signature")),
        state=body["state"],
    )


def tree_of(record: Record) -> Tree:
    """The snapshot a version holds."""
    body = record.body
    tree: Tree = from_plain(
        Tree,
        {
            "root": body["root"],
            "num_files": body["num_files"],
            "size_bytes": body["size"],
            "batches": body["batches"],
        },
    )
    return tree


def nearest(record: Record, ctx: Context) -> str:
    """The zone to read a version from: the caller's own where it lies there, else the first."""
    zones = record.body["zones"]
    return ctx.zone if ctx.zone in zones else str(zones[0])
