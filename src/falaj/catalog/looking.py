"""Looking: the platform's own look at a model's files. A gate believes no publisher about what loading a file does."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from falaj.catalog.shelf import Shelf, nearest, tree_of
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid
from falaj.core.ports import KeepsOut
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.snapshot.records import Tree
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Writer
from falaj.store.records import Record

if TYPE_CHECKING:
    from falaj.snapshot.read import Fetch


@dataclass(frozen=True, slots=True)
class Looked:
    """What the platform found in the files of a model."""

    ref: Ref
    format: str
    code_bearing: bool
    reasons: tuple[str, ...] = ()
    """Why loading it could run code, file by file; or why its files are not those that were signed."""
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """The same, by whoever looked."""

    format: str
    code_bearing: bool
    reasons: tuple[str, ...] = ()
    ok: bool = True


class Looking(Shelf):
    """What the platform sees for itself."""

    @verb(reads=("name",), group="write", outside=True)
    def inspect(self, ctx: Context, name: Annotated[Ref, "which version of a model"]) -> Looked:
        """Have the platform look into a model's files: their format, whether loading them runs code, their digests.

        Nothing is loaded or run. `falaj catalog publish` asks for it; a gate that demands a safe format believes what
        was found here, and not what the publisher said.

        Example:
            falaj catalog inspect model:fraud/scorer@v7
        """
        if name.kind != "model":
            raise Invalid(f"{name} is no model", "only models are looked into", name)
        with self._ledger.read(ctx) as tx:
            record = self._live(tx, name)
        found = self._look(ctx, record)

        def keep(tx: Writer) -> Looked:
            now = self._live(tx, record.ref)
            seen = {"format": found.format, "code_bearing": found.code_bearing, "reasons": found.reasons}
            self._rewrite(tx, now, seen={**seen, "ok": found.ok, "at": ctx.now()})
            tx.emit("catalog.inspect", now.ref, format=found.format, code=int(found.code_bearing), ok=int(found.ok))
            return found

        return self._ledger.retry(ctx, keep)

    def _look(self, ctx: Context, record: Record) -> Looked:
        zone, tree = nearest(record, ctx), tree_of(record)
        files, store = record.body.get("files") or {}, self._blobs.open_zone(zone)
        if isinstance(store, KeepsOut):
            # Its zone's agent looks in our place: it alone can.
            lies = self._blobs.lies(ctx, zone, [batch.bundle for batch in tree.batches])
            given = {"tenant": ctx.tenant, "tree": to_plain(tree), "lies": lies, "files": files}
            found: Found = from_plain(Found, store.look(given))
        else:
            found = look_into(tree, lambda digest, start, stop: self._blobs.give(ctx, zone, digest, start, stop), files)
        return Looked(record.ref, found.format, found.code_bearing, found.reasons, found.ok)


def look_into(tree: Tree, fetch: "Fetch", files: Mapping[str, str]) -> Found:
    """What the files of a tree are. `files` are the digests that were signed, where any were."""
    import tempfile

    from falaj.catalog.cards import hash_files
    from falaj.content.formats import inspect
    from falaj.snapshot.checkout import checkout
    from falaj.snapshot.read import Snapshot

    # In the clear for as long as the look takes, in a folder nobody else can enter.
    with tempfile.TemporaryDirectory(prefix="falaj-look-") as home:
        folder = Path(home) / "model"
        checkout(Snapshot(tree, fetch), folder)
        try:
            found = inspect(folder)
        except (Invalid, Corrupt) as error:
            return Found("other", True, (error.message[:500],), ok=False)
        wrong = bool(files) and files != hash_files(folder)
    reasons = ("its files are not those that were signed",) if wrong else tuple(found.reasons)
    return Found(found.format, found.code_bearing or wrong, reasons, not wrong)
