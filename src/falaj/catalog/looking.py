"""Looking: the platform's own look at a model's files. A gate believes no publisher about what loading a file does."""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

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

if TYPE_CHECKING:
    from falaj.snapshot.read import Fetch


@dataclass(frozen=True, slots=True)
class Looked:
    """What the platform found in the files of a model."""

    STRUCTURE: ClassVar = ("ref", "format", "code_bearing", "ok")

    ref: Ref
    format: str
    code_bearing: bool
    reasons: tuple[str, ...] = ()
    """Why loading it could run code, file by file; or why its files are not those that were signed."""
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """The same, by whoever looked; and of files that nobody described, what is to be said of them."""

    format: str
    code_bearing: bool
    reasons: tuple[str, ...] = ()
    ok: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 by path, as signatures name files."""
    signature: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


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
        found = self.look(ctx, (tree_of(record), nearest(record, ctx)), record.body.get("files") or {})
        return self._ledger.retry(ctx, lambda tx: self.note_look(tx, ctx, record.ref, found))

    def look(self, ctx: Context, tree: tuple[Tree, str], files: Mapping[str, str] | None = None) -> Found:
        """What the files of a tree are that lies in a zone; for whoever may read them. `files`: see `look_into`."""
        made, zone = tree
        store = self._blobs.open_zone(zone)
        if isinstance(store, KeepsOut):
            # Its zone's agent looks in our place: it alone can.
            lies = self._blobs.lies(ctx, zone, [batch.bundle for batch in made.batches])
            found: Found = from_plain(
                Found, store.look({"tenant": ctx.tenant, "tree": to_plain(made), "lies": lies, "files": files})
            )
            return found
        return look_into(made, lambda digest, start, stop: self._blobs.give(ctx, zone, digest, start, stop), files)

    def note_look(self, tx: Writer, ctx: Context, ref: Ref, found: Found) -> Looked:
        """Keep with a version what was found in its files, in the transaction of whoever looked."""
        now = self._live(tx, ref)
        seen = {"format": found.format, "code_bearing": found.code_bearing, "reasons": found.reasons}
        self._rewrite(tx, now, seen={**seen, "ok": found.ok, "at": ctx.now()})
        tx.emit("catalog.inspect", now.ref, format=found.format, code=int(found.code_bearing), ok=int(found.ok))
        return Looked(now.ref, found.format, found.code_bearing, found.reasons, found.ok)


def look_into(tree: Tree, fetch: "Fetch", files: Mapping[str, str] | None) -> Found:
    """What the files of a tree are. `files` are the digests that were signed, where any were; None asks for them, and
    for what the files say of the model."""
    import tempfile

    from falaj.catalog.cards import hash_files
    from falaj.catalog.model_parser import ParsedModel, inspect_isolated, parse_model
    from falaj.snapshot.checkout import checkout
    from falaj.snapshot.read import Snapshot

    # In the clear for as long as the look takes, in a folder nobody else can enter.
    with tempfile.TemporaryDirectory(prefix="falaj-look-") as home:
        folder = Path(home) / "model"
        checkout(Snapshot(tree, fetch), folder)
        there = hash_files(folder) if files is None or files else {}
        try:
            parsed = parse_model(folder) if files is None else ParsedModel(inspect_isolated(folder))
        except (Invalid, Corrupt) as error:
            digests = there if files is None else {}
            return Found("other", True, (error.message[:500],), ok=False, files=digests)
    found, wrong = parsed.inspected, bool(files) and files != there
    reasons = ("its files are not those that were signed",) if wrong else tuple(found.reasons)
    finding = Found(found.format, found.code_bearing or wrong, reasons, not wrong)
    if files is not None:
        return finding
    return replace(finding, files=there, signature=parsed.signature, environment=parsed.environment)
