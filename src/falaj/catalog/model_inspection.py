"""Looking: the platform's own look at a model's files. A gate believes no publisher about what loading a file does."""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from falaj.catalog.service_base import CatalogServiceBase, choose_read_zone, read_tree
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid
from falaj.core.operation import operation
from falaj.core.ports import RemoteZoneObjects
from falaj.core.ref import Ref
from falaj.snapshot.records import PublishedTree
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import LedgerWriter

if TYPE_CHECKING:
    from falaj.snapshot.tree_reader import FetchBytes


@dataclass(frozen=True, slots=True)
class ModelInspection:
    """What the platform found in the files of a model."""

    STRUCTURE: ClassVar = ("ref", "format", "code_bearing", "ok")

    ref: Ref
    format: str
    code_bearing: bool
    reasons: tuple[str, ...] = ()
    """Why loading it could run code, file by file; or why its files are not those that were signed."""
    ok: bool = True


@dataclass(frozen=True, slots=True)
class InspectionResult:
    """The same, by whoever looked; and of files that nobody described, what is to be said of them."""

    format: str
    code_bearing: bool
    reasons: tuple[str, ...] = ()
    ok: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 by path, as signatures name files."""
    signature: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class InspectionOperations(CatalogServiceBase):
    """What the platform sees for itself."""

    @operation(reads=("name",), group="write", has_outside_effects=True)
    def inspect(self, ctx: CallContext, name: Annotated[Ref, "which version of a model"]) -> ModelInspection:
        """Have the platform look into a model's files: their format, whether loading them runs code, their digests.

        Nothing is loaded or run. `falaj catalog publish` asks for it; a gate that demands a safe format believes what
        was found here, and not what the publisher said.

        Example:
            falaj catalog inspect model:fraud/scorer@v7
        """
        if name.kind != "model":
            raise Invalid(f"{name} is no model", "only models are looked into", name)
        with self._ledger.read(ctx) as tx:
            record = self.require_live(tx, name)
        inspection = self.look(ctx, (read_tree(record), choose_read_zone(record, ctx)), record.body.get("files") or {})
        return self._ledger.retry(ctx, lambda tx: self.note_look(tx, ctx, record.ref, inspection))

    def look(
        self, ctx: CallContext, tree_and_zone: tuple[PublishedTree, str], files: Mapping[str, str] | None = None
    ) -> InspectionResult:
        """What the files of a tree are that lies in a zone; for whoever may read them. `files`: see `inspect_files`."""
        version_tree, zone = tree_and_zone
        store = self._blobs.open_zone(zone)
        if isinstance(store, RemoteZoneObjects):
            # Its zone's agent looks in our place: it alone can.
            piece_locations = self._blobs.lies(ctx, zone, [batch.bundle for batch in version_tree.batches])
            inspection: InspectionResult = from_plain(
                InspectionResult,
                store.look(
                    {"tenant": ctx.tenant, "tree": to_plain(version_tree), "lies": piece_locations, "files": files}
                ),
            )
            return inspection
        return inspect_files(
            version_tree, lambda digest, start, stop: self._blobs.give(ctx, zone, digest, start, stop), files
        )

    def note_look(self, tx: LedgerWriter, ctx: CallContext, ref: Ref, inspection: InspectionResult) -> ModelInspection:
        """Keep with a version what was found in its files, in the transaction of whoever looked."""
        live_record = self.require_live(tx, ref)
        stored_result = {
            "format": inspection.format,
            "code_bearing": inspection.code_bearing,
            "reasons": inspection.reasons,
        }
        self.update_version(tx, live_record, seen={**stored_result, "ok": inspection.ok, "at": ctx.now()})
        tx.emit(
            "catalog.inspect",
            live_record.ref,
            format=inspection.format,
            code=int(inspection.code_bearing),
            ok=int(inspection.ok),
        )
        return ModelInspection(
            live_record.ref, inspection.format, inspection.code_bearing, inspection.reasons, inspection.ok
        )


def inspect_files(tree: PublishedTree, fetch: "FetchBytes", files: Mapping[str, str] | None) -> InspectionResult:
    """What the files of a tree are. `files` are the digests that were signed, where any were; None asks for them, and
    for what the files say of the model."""
    import tempfile

    from falaj.catalog.model_cards import hash_files
    from falaj.catalog.model_parser import ParsedModel, inspect_isolated, parse_model
    from falaj.snapshot.checkout import checkout_tree
    from falaj.snapshot.tree_reader import TreeSnapshot

    # In the clear for as long as the look takes, in a folder nobody else can enter.
    with tempfile.TemporaryDirectory(prefix="falaj-look-") as scratch_folder:
        folder = Path(scratch_folder) / "model"
        checkout_tree(TreeSnapshot(tree, fetch), folder)
        file_digests = hash_files(folder) if files is None or files else {}
        try:
            parsed = parse_model(folder) if files is None else ParsedModel(inspect_isolated(folder))
        except (Invalid, CorruptData) as error:
            digests = file_digests if files is None else {}
            return InspectionResult("other", True, (error.message[:500],), ok=False, files=digests)
    inspected, is_altered = parsed.inspected, bool(files) and files != file_digests
    reasons = ("its files are not those that were signed",) if is_altered else tuple(inspected.reasons)
    inspection = InspectionResult(inspected.format, inspected.code_bearing or is_altered, reasons, not is_altered)
    if files is not None:
        return inspection
    return replace(inspection, files=file_digests, signature=parsed.signature, environment=parsed.environment)
