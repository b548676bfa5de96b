"""Files of runs: attach, fetch, list, detach; and how a folder of them becomes a version of a model."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Annotated

from falaj.catalog.model_inspection import InspectionResult
from falaj.catalog.records import ModelCard, PublishFacts
from falaj.catalog.service_base import choose_read_zone, create_visibility_check, deleted_version_error, read_tree
from falaj.core.byte_channel import UploadReceipt
from falaj.core.byte_stream import ByteStream
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.core.withholding import WITHHELD_TEXT
from falaj.snapshot.records import PublishedTree
from falaj.store.blob_store import BlobInfo, BlobStore
from falaj.store.codec import from_plain
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.store.stored_objects import assemble_object, close_intent, open_intent
from falaj.store.transfers import make_bundle_object
from falaj.track.record_views import find_all_records, list_used_refs, require_record
from falaj.track.records import Artifact
from falaj.track.tracking_base import TrackingBase, check_texts

MAX_PATH_CHARS, MAX_FILES = 1_000, 10_000
FILE_OWNER_KINDS = ("run", "output", "trace")
"""What may have files: a run, a model that one logged, a trace."""
_INVALID_ROLE_CHARS = re.compile(r"[^A-Za-z0-9_. -]+")


class ArtifactOperations(TrackingBase):
    """The files that runs leave behind."""

    @operation(writes=("run",), has_outside_effects=True)
    def attach(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "of which run, logged model or trace"],
        path: Annotated[str, "where in the run, for example plots/roc.png"],
        data: Annotated[ByteStream, "the bytes"],
    ) -> Artifact:
        """Attach a file to a run. The same path again replaces it.

        Example:
            falaj track attach run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 plots/roc.png ./roc.png
        """
        checked_path = check_path(path)
        with self._ledger.read(ctx) as reader:
            zone = self._require_owner(reader, run, must_be_active=True).zone
        owner_text = str(run.bare)
        blob = self._blobs.put(ctx, owner_text, zone, data, ctx.permit("write", owner_text, zone))
        return self._ledger.retry(ctx, lambda reader: self._save_artifact(reader, ctx, run, checked_path, blob))

    @operation(reads=("run",), group="read", has_outside_effects=True)
    def fetch(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "of which run, logged model or trace"],
        path: Annotated[str, "which file"],
        start: Annotated[int, "the first byte wanted"] = 0,
        stop: Annotated[int | None, "the byte after the last one wanted; to the end when left out"] = None,
    ) -> ByteStream:
        """Read a file of a run, or a range of it.

        Example:
            falaj track fetch run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 plots/roc.png --out roc.png
        """
        with self._ledger.read(ctx) as reader:
            file_record = self._require_file(reader, self._require_owner(reader, run), check_path(path))
        owner_text, zone, size = str(run.bare), file_record.zone, file_record.body["size"]
        permit = ctx.permit("read", owner_text, zone)
        chunks = self._blobs.get(ctx, owner_text, zone, file_record.body["digest"], permit, start, stop)
        return ByteStream(chunks, max(0, (size if stop is None else min(stop, size)) - start))

    @operation(reads=("run",))
    def artifacts(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "of which run, logged model or trace"],
        path: Annotated[str, "in this folder of it"] = "",
        deep: Annotated[bool, "every file below, and no folders"] = False,
    ) -> tuple[Artifact, ...]:
        """List the files and folders of a run, one level of them or all.

        Example:
            falaj track artifacts run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --path plots
        """
        folder = check_path(path) if path else ""
        with self._ledger.read(ctx) as reader:
            files = [
                _as_artifact(file_record) for file_record in self._list_files(reader, self._require_owner(reader, run))
            ]
        files_below = [
            file for file in files if file.path == folder or not folder or file.path.startswith(folder + "/")
        ]
        return tuple(files_below) if deep else _list_level(files_below, folder)

    @operation(writes=("run",))
    def detach(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "of which run, logged model or trace"],
        path: Annotated[str, "which file, or a folder with all that is in it"],
    ) -> int:
        """Take a file or a folder off a run; gives how many files went.

        Refused while a law of its label, a legal hold (also on what it used), a contract or an open breach keeps it.

        Example:
            falaj track detach run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 plots/roc.png
        """
        checked_path = check_path(path)
        with self._ledger.write(ctx) as writer:
            record = self._require_owner(writer, run, must_be_active=True)
            removed_files = [
                file_record
                for file_record in self._list_files(writer, record)
                if file_record.body["path"] == checked_path or _is_inside(file_record.body["path"], checked_path)
            ]
            if not removed_files:
                raise NotFound(f"{run.bare} has no {checked_path[:80]}", f"falaj track artifacts {run.bare}", run)
            self.destruction.check_duties(ctx, record, create_visibility_check(self._ledger, ctx, record.ref))
            for file_record in removed_files:
                writer.delete(file_record.key, file_record.rev)
                logged_path = _loggable_path(record, file_record.body["path"])
                writer.emit("track.detach", record.ref, path=logged_path, digest=file_record.body["digest"])
        return len(removed_files)

    @operation(writes=("model",), reads=("run",), has_outside_effects=True)
    def register(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "which run; or a version of a model, to have it under another name, too"],
        path: Annotated[str, "the folder (or file) of it that is the model; all its files when empty"],
        model: Annotated[Ref, "what to call the model, for example model:fraud/scorer"],
        message: Annotated[str, "what is new in it"] = "",
        tags: Annotated[dict[str, str] | None, "tags, by name"] = None,
    ) -> Ref:
        """Make files of a run the next version of a model in the catalog. No byte is copied.

        The platform looks into the files and signs them. The version carries the label of the run as it is now, and
        what the run used is its lineage.

        Example:
            falaj track register run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 model:fraud/scorer model
        """
        if model.kind != "model" or model.version:
            raise Invalid(f"{model} names no model", "for example model:fraud/scorer, without a version", model)
        folder = check_path(path) if path else ""
        if run.kind == "model":
            return self._register_copy(ctx, run, model, PublishFacts(message=message, tags=check_texts("tag", tags)))
        with self._ledger.read(ctx) as reader:
            record = self._require_owner(reader, run, must_be_active=True)
            files, source_run = (
                _collect_files(self._list_files(reader, record), folder, run),
                self._find_run(reader, record),
            )
        zone = record.zone
        ctx.permit("read", str(run.bare), zone)
        sink = _BlobSink(ctx, self._blobs, str(model.bare), zone)
        intent = self._blobs.project(ctx, lambda reader: open_intent(reader, ctx, "publish", str(model.bare), zone))
        try:
            from falaj.snapshot.publisher import compose_tree

            tree = (compose_tree(files, sink).tree, zone)
            inspection = self._catalog.look(ctx, tree)
            card = self._build_card(record, source_run, inspection)
            facts = PublishFacts(message=message, card=card, tags=check_texts("tag", tags), files=inspection.files)
            return self._ledger.retry(
                ctx, lambda reader: self._add_version(reader, ctx, run, model, tree, facts, inspection)
            )
        finally:
            self._blobs.project(ctx, lambda reader: close_intent(reader, intent))

    def _register_copy(self, ctx: CallContext, version: Ref, model: Ref, facts: PublishFacts) -> Ref:
        """A version of one model as the next of another: the same bytes where they lie, looked into once more."""
        with self._ledger.read(ctx) as reader:
            record = self._find_source(reader, version)
        tree, card = (read_tree(record), choose_read_zone(record, ctx)), record.body.get("card")
        ctx.permit("read", str(version.bare), tree[1])
        inspection = self._catalog.look(ctx, tree)
        facts = replace(facts, card=from_plain(ModelCard, card) if card else None, files=inspection.files)
        return self._ledger.retry(
            ctx, lambda reader: self._add_version(reader, ctx, version, model, tree, facts, inspection)
        )

    def _find_source(self, reader: LedgerReader, source_ref: Ref) -> LedgerRecord:
        """What a version is made of: whatever has files, or a version."""
        if source_ref.kind != "model":
            return self._require_owner(reader, source_ref, must_be_active=True)
        if (record := reader.need(source_ref)).body["state"] != "live":
            raise deleted_version_error(record)
        return record

    def _require_owner(self, reader: LedgerReader, owner_ref: Ref, *, must_be_active: bool = False) -> LedgerRecord:
        """Whatever has files: a run, a model that one logged, or a trace."""
        record = require_record(reader, owner_ref, owner_ref.kind if owner_ref.kind in FILE_OWNER_KINDS else "run")
        if must_be_active and record.body.get("state", "active") != "active":
            raise Invalid(f"{owner_ref.bare} is deleted", f"falaj track restore {owner_ref.bare}", owner_ref)
        return record

    def _add_version(
        self,
        writer: LedgerWriter,
        ctx: CallContext,
        owner: Ref,
        model: Ref,
        tree: tuple[PublishedTree, str],
        facts: PublishFacts,
        inspection: InspectionResult,
    ) -> Ref:
        """The version: made from a run and what that used, as they are now, be it by way of a model it logged."""
        record = self._find_source(writer, owner)
        run = self._find_run(writer, record)
        own_inputs = _own_inputs(run) if run is not None else {}
        inputs = {**own_inputs, record.key.kind: record.ref, **({"run": run.ref} if run is not None else {})}
        if run is not None:
            label = run.label if ctx.label is None else ctx.label.join(run.label)
            ctx = ctx.meaning(ctx.purpose, label)
        # What the run is said to have used since the guard looked may keep the version from where the run lies.
        ctx.permit("write", str(model.bare), tree[1])
        version = self._catalog.add_version(ctx, model, tree, facts, inputs)
        self._catalog.note_look(writer, ctx, version, inspection)
        # Each revision has edges of its own: the one taken need not be the one that said what it was made from.
        used_refs = list_used_refs(run) if run is not None else ()
        writer.emit("track.register", (run or record).ref, used_refs, version=str(version))
        if run is not None and run is not record:
            writer.emit("track.register", record.ref, (run.ref, *used_refs), version=str(version))
        return version

    def _find_run(self, reader: LedgerReader, record: LedgerRecord) -> LedgerRecord | None:
        """The run whose files these are, or that logged the model whose they are."""
        if record.key.kind == "run":
            return record
        id_ = record.body.get("run", "") if record.key.kind == "output" else ""
        ref = self.run_ref(record.key.tenant, id_) if id_ else None
        return reader.get(ref) if ref is not None else None

    def _build_card(self, record: LedgerRecord, run: LedgerRecord | None, inspection: InspectionResult) -> ModelCard:
        heads = self.measures.heads(run.key.tenant, run.key.name) if run is not None else {}
        metrics = {key: metric.value for key, metric in heads.items() if not metric.odd}
        if record.key.kind == "output":
            own_points = [measurement["point"] for measurement in record.body["metrics"]]
            metrics |= {
                measurement["key"]: measurement.get("value", 0.0)
                for measurement in own_points
                if not measurement.get("odd")
            }
        return ModelCard(
            inspection.format, inspection.code_bearing, inspection.signature, metrics, record.body.get("params", {}),
            inspection.environment, run=str(run.ref.bare if run is not None and run is not record else record.ref),
        )  # fmt: skip

    def _save_artifact(self, writer: LedgerWriter, ctx: CallContext, run: Ref, path: str, blob: BlobInfo) -> Artifact:
        record = self._require_owner(writer, run, must_be_active=True)
        _check_room(self._list_files(writer, record), path)
        self._blobs.hold(writer, ctx, blob.zone, blob.digest)
        name = _artifact_ref(record, path)
        old_record = writer.get(name)
        body = {"path": path, "digest": blob.digest, "size": blob.size, "run": record.key.name, "made_at": ctx.now()}
        terms = {"digest": blob.digest, f"at.{blob.zone}": "yes", "run": record.key.name}
        writer.put(
            name, body, rev=old_record.rev if old_record else None, zone=blob.zone, label=record.label, terms=terms
        )
        writer.emit(
            "track.attach", record.ref, path=_loggable_path(record, path), digest=blob.digest, size_bytes=blob.size
        )
        return Artifact(path, blob.size, blob.digest, made_at=ctx.now())

    def _require_file(self, reader: LedgerReader, record: LedgerRecord, path: str) -> LedgerRecord:
        file_record = reader.get(_artifact_ref(record, path))
        if file_record is None:
            raise NotFound(
                f"{record.ref.bare} has no file {path[:80]}", f"falaj track artifacts {record.ref.bare}", record.ref
            )
        return file_record

    def _list_files(self, reader: LedgerReader, record: LedgerRecord) -> list[LedgerRecord]:
        file_records = find_all_records(reader, "artifact", terms={"run": record.key.name})
        return sorted(file_records, key=lambda file_record: str(file_record.body["path"]))


class _BlobSink:
    """Where a composed tree puts its pages: beside the files, under the model's name."""

    def __init__(self, ctx: CallContext, blobs: BlobStore, owner_text: str, zone: str) -> None:
        self._ctx, self._blobs, self._owner_text, self._zone = ctx, blobs, owner_text, zone

    def put(self, chunks: Iterable[bytes]) -> UploadReceipt:
        """One new piece."""
        permit = self._ctx.permit("write", self._owner_text, self._zone)
        blob = self._blobs.put(self._ctx, self._owner_text, self._zone, chunks, permit)
        return UploadReceipt(blob.digest, blob.size, "")

    def bundle(self, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        """Pieces, new and old, tied together."""
        blob_bundle = make_bundle_object(
            self._ctx, self._zone, tuple((receipt.digest, receipt.size) for receipt in receipts)
        )
        self._blobs.project(self._ctx, lambda writer: assemble_object(writer, blob_bundle))
        return UploadReceipt(f"b3:{blob_bundle.digest}", blob_bundle.size, "")


def _loggable_path(run: LedgerRecord, path: str) -> str:
    """A path as the log, which auditors and hooks read, may hold it: code that reads labelled data chose it."""
    return path if run.label.is_open else WITHHELD_TEXT


def check_path(path: str) -> str:
    """A path inside a run: relative, plain, and never a way out."""
    parts = path.split("/")
    is_plain = 0 < len(path) <= MAX_PATH_CHARS and path.isprintable() and "\\" not in path
    if not is_plain or any(part in ("", ".", "..") for part in parts):
        raise Invalid(f"{path[:80]!r} is no path inside a run", "for example plots/roc.png: relative, without ..")
    return path


def _artifact_ref(record: LedgerRecord, path: str) -> Ref:
    digest = hashlib.blake2b(path.encode(), digest_size=20).hexdigest()
    return Ref("artifact", record.key.project, f"{record.key.name}.{digest}")


def _check_room(files: list[LedgerRecord], path: str) -> None:
    """A path may not be a file and a folder at once, on whatever disk it is laid out later."""
    for file_record in files:
        existing_path = str(file_record.body["path"])
        if _is_inside(existing_path, path) or _is_inside(path, existing_path):
            raise Conflict(f"{existing_path[:80]} is there", "a name is a file or a folder, not both")
    if len(files) >= MAX_FILES and all(file_record.body["path"] != path for file_record in files):
        raise Invalid(f"a run with {len(files)} files", f"at most {MAX_FILES}; put large sets into the catalog")


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")


def _as_artifact(record: LedgerRecord) -> Artifact:
    body = record.body
    return Artifact(body["path"], body["size"], body["digest"], made_at=body["made_at"])


def _list_level(files: list[Artifact], folder: str) -> tuple[Artifact, ...]:
    """Files right in a folder, and the folders in it with the size of all they hold."""
    artifacts: list[Artifact] = []
    folders: dict[str, int] = {}
    for file in files:
        relative_path = file.path[len(folder) + 1 :] if folder else file.path
        if file.path == folder:
            continue
        first_part, slash, _ = relative_path.partition("/")
        if slash:
            name = f"{folder}/{first_part}" if folder else first_part
            folders[name] = folders.get(name, 0) + file.size_bytes
        else:
            artifacts.append(file)
    artifacts += [Artifact(name, size, folder=True) for name, size in folders.items()]
    return tuple(sorted(artifacts, key=lambda artifact: artifact.path))


def _collect_files(files: list[LedgerRecord], folder: str, run: Ref) -> list[tuple[bytes, UploadReceipt]]:
    """(path below the folder, what it is) of each file, for the tree of a version."""
    path_and_receipts: list[tuple[bytes, UploadReceipt]] = []
    for file_record in files:
        path, body = str(file_record.body["path"]), file_record.body
        if path == folder:
            path_and_receipts.append(
                (path.rpartition("/")[2].encode(), UploadReceipt(body["digest"], body["size"], ""))
            )
        elif not folder or _is_inside(path, folder):
            relative_path = path[len(folder) + 1 :] if folder else path
            path_and_receipts.append((relative_path.encode(), UploadReceipt(body["digest"], body["size"], "")))
    if not path_and_receipts:
        raise NotFound(f"{run.bare} has no files under {folder[:80]!r}", f"falaj track artifacts {run.bare}", run)
    return sorted(path_and_receipts)


def _own_inputs(run: LedgerRecord) -> Mapping[str, Ref]:
    """The things of ours that a run used, by role; other people's tools name data as they like."""
    refs_by_role: dict[str, Ref] = {}
    for used_data in run.body["inputs"]:
        if used_data.get("ref"):
            name = _INVALID_ROLE_CHARS.sub("-", used_data["name"]).lstrip(" .-")[:100] or "data"
            numbered_names = (f"{name}-{number}" for number in count(1))
            role = next(
                role
                for role in chain((name,), numbered_names)
                if role not in refs_by_role and role not in FILE_OWNER_KINDS
            )
            refs_by_role[role] = Ref.parse(used_data["ref"])
    return refs_by_role
