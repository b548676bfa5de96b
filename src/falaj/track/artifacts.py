"""Files of runs: attach, fetch, list, detach; and how a folder of them becomes a version of a model."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Annotated

from falaj.catalog.looking import Found
from falaj.catalog.records import Card, Facts
from falaj.catalog.shelf import gone, nearest, sight, tree_of
from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.transfer import Receipt
from falaj.core.verb import verb
from falaj.core.withhold import WITHHELD
from falaj.snapshot.records import Tree
from falaj.store.blobs import Blob, BlobStore
from falaj.store.codec import from_plain
from falaj.store.ledger import Reader, Writer
from falaj.store.objects import assemble, close_intent, open_intent
from falaj.store.records import Record
from falaj.store.transfer import bundle_of
from falaj.track.notebook import Notebook, check_texts
from falaj.track.reading import find_all, made_from, need
from falaj.track.records import Artifact

LONGEST_PATH, MOST_FILES = 1_000, 10_000
OWNERS = ("run", "output", "trace")
"""What may have files: a run, a model that one logged, a trace."""
_NO_ROLE = re.compile(r"[^A-Za-z0-9_. -]+")


class Artifacts(Notebook):
    """The files that runs leave behind."""

    @verb(writes=("run",), outside=True)
    def attach(
        self,
        ctx: Context,
        run: Annotated[Ref, "of which run, logged model or trace"],
        path: Annotated[str, "where in the run, for example plots/roc.png"],
        data: Annotated[Stream, "the bytes"],
    ) -> Artifact:
        """Attach a file to a run. The same path again replaces it.

        Example:
            falaj track attach run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 plots/roc.png ./roc.png
        """
        place = check_path(path)
        with self._ledger.read(ctx) as tx:
            zone = self._owner(tx, run, live=True).zone
        thing = str(run.bare)
        blob = self._blobs.put(ctx, thing, zone, data, ctx.permit("write", thing, zone))
        return self._ledger.retry(ctx, lambda tx: self._keep(tx, ctx, run, place, blob))

    @verb(reads=("run",), group="read", outside=True)
    def fetch(
        self,
        ctx: Context,
        run: Annotated[Ref, "of which run, logged model or trace"],
        path: Annotated[str, "which file"],
        start: Annotated[int, "the first byte wanted"] = 0,
        stop: Annotated[int | None, "the byte after the last one wanted; to the end when left out"] = None,
    ) -> Stream:
        """Read a file of a run, or a range of it.

        Example:
            falaj track fetch run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 plots/roc.png --out roc.png
        """
        with self._ledger.read(ctx) as tx:
            found = self._file(tx, self._owner(tx, run), check_path(path))
        thing, zone, size = str(run.bare), found.zone, found.body["size"]
        permit = ctx.permit("read", thing, zone)
        chunks = self._blobs.get(ctx, thing, zone, found.body["digest"], permit, start, stop)
        return Stream(chunks, max(0, (size if stop is None else min(stop, size)) - start))

    @verb(reads=("run",))
    def artifacts(
        self,
        ctx: Context,
        run: Annotated[Ref, "of which run, logged model or trace"],
        path: Annotated[str, "in this folder of it"] = "",
        deep: Annotated[bool, "every file below, and no folders"] = False,
    ) -> tuple[Artifact, ...]:
        """List the files and folders of a run, one level of them or all.

        Example:
            falaj track artifacts run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --path plots
        """
        folder = check_path(path) if path else ""
        with self._ledger.read(ctx) as tx:
            files = [_as_artifact(one) for one in self._files(tx, self._owner(tx, run))]
        below = [file for file in files if file.path == folder or not folder or file.path.startswith(folder + "/")]
        return tuple(below) if deep else _level(below, folder)

    @verb(writes=("run",))
    def detach(
        self,
        ctx: Context,
        run: Annotated[Ref, "of which run, logged model or trace"],
        path: Annotated[str, "which file, or a folder with all that is in it"],
    ) -> int:
        """Take a file or a folder off a run; gives how many files went.

        Refused while a law of its label, a legal hold (also on what it used), a contract or an open breach keeps it.

        Example:
            falaj track detach run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 plots/roc.png
        """
        place = check_path(path)
        with self._ledger.write(ctx) as tx:
            record = self._owner(tx, run, live=True)
            gone = [
                one for one in self._files(tx, record) if one.body["path"] == place or _inside(one.body["path"], place)
            ]
            if not gone:
                raise NotFound(f"{run.bare} has no {place[:80]}", f"falaj track artifacts {run.bare}", run)
            self.destruction.check_duties(ctx, record, sight(self._ledger, ctx, record.ref))
            for one in gone:
                tx.delete(one.key, one.rev)
                logged_path = _loggable_path(record, one.body["path"])
                tx.emit("track.detach", record.ref, path=logged_path, digest=one.body["digest"])
        return len(gone)

    @verb(writes=("model",), reads=("run",), outside=True)
    def register(
        self,
        ctx: Context,
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
            return self._copied(ctx, run, model, Facts(message=message, tags=check_texts("tag", tags)))
        with self._ledger.read(ctx) as tx:
            record = self._owner(tx, run, live=True)
            files, maker = _under(self._files(tx, record), folder, run), self._maker(tx, record)
        zone = record.zone
        ctx.permit("read", str(run.bare), zone)
        sink = _Sink(ctx, self._blobs, str(model.bare), zone)
        intent = self._blobs.project(ctx, lambda tx: open_intent(tx, ctx, "publish", str(model.bare), zone))
        try:
            from falaj.snapshot.write import compose

            tree = (compose(files, sink).tree, zone)
            found = self._catalog.look(ctx, tree)
            card = self._card(record, maker, found)
            facts = Facts(message=message, card=card, tags=check_texts("tag", tags), files=found.files)
            return self._ledger.retry(ctx, lambda tx: self._add(tx, ctx, run, model, tree, facts, found))
        finally:
            self._blobs.project(ctx, lambda tx: close_intent(tx, intent))

    def _copied(self, ctx: Context, version: Ref, model: Ref, facts: Facts) -> Ref:
        """A version of one model as the next of another: the same bytes where they lie, looked into once more."""
        with self._ledger.read(ctx) as tx:
            record = self._source(tx, version)
        tree, card = (tree_of(record), nearest(record, ctx)), record.body.get("card")
        ctx.permit("read", str(version.bare), tree[1])
        found = self._catalog.look(ctx, tree)
        facts = replace(facts, card=from_plain(Card, card) if card else None, files=found.files)
        return self._ledger.retry(ctx, lambda tx: self._add(tx, ctx, version, model, tree, facts, found))

    def _source(self, tx: Reader, thing: Ref) -> Record:
        """What a version is made of: whatever has files, or a version."""
        if thing.kind != "model":
            return self._owner(tx, thing, live=True)
        if (record := tx.need(thing)).body["state"] != "live":
            raise gone(record)
        return record

    def _owner(self, tx: Reader, thing: Ref, *, live: bool = False) -> Record:
        """Whatever has files: a run, a model that one logged, or a trace."""
        record = need(tx, thing, thing.kind if thing.kind in OWNERS else "run")
        if live and record.body.get("state", "active") != "active":
            raise Invalid(f"{thing.bare} is deleted", f"falaj track restore {thing.bare}", thing)
        return record

    def _add(
        self, tx: Writer, ctx: Context, owner: Ref, model: Ref, tree: tuple[Tree, str], facts: Facts, found: Found
    ) -> Ref:
        """The version: made from a run and what that used, as they are now, be it by way of a model it logged."""
        record = self._source(tx, owner)
        run = self._maker(tx, record)
        ours = _ours(run) if run is not None else {}
        inputs = {**ours, record.key.kind: record.ref, **({"run": run.ref} if run is not None else {})}
        if run is not None:
            label = run.label if ctx.label is None else ctx.label.join(run.label)
            ctx = ctx.meaning(ctx.purpose, label)
        # What the run is said to have used since the guard looked may keep the version from where the run lies.
        ctx.permit("write", str(model.bare), tree[1])
        version = self._catalog.add_version(ctx, model, tree, facts, inputs)
        self._catalog.note_look(tx, ctx, version, found)
        # Each revision has edges of its own: the one taken need not be the one that said what it was made from.
        used = made_from(run) if run is not None else ()
        tx.emit("track.register", (run or record).ref, used, version=str(version))
        if run is not None and run is not record:
            tx.emit("track.register", record.ref, (run.ref, *used), version=str(version))
        return version

    def _maker(self, tx: Reader, record: Record) -> Record | None:
        """The run whose files these are, or that logged the model whose they are."""
        if record.key.kind == "run":
            return record
        id_ = record.body.get("run", "") if record.key.kind == "output" else ""
        ref = self.run_ref(record.key.tenant, id_) if id_ else None
        return tx.get(ref) if ref is not None else None

    def _card(self, record: Record, run: Record | None, found: Found) -> Card:
        heads = self.measures.heads(run.key.tenant, run.key.name) if run is not None else {}
        metrics = {key: metric.value for key, metric in heads.items() if not metric.odd}
        if record.key.kind == "output":
            own = [one["point"] for one in record.body["metrics"]]
            metrics |= {one["key"]: one.get("value", 0.0) for one in own if not one.get("odd")}
        return Card(
            found.format, found.code_bearing, found.signature, metrics, record.body.get("params", {}),
            found.environment, run=str(run.ref.bare if run is not None and run is not record else record.ref),
        )  # fmt: skip

    def _keep(self, tx: Writer, ctx: Context, run: Ref, path: str, blob: Blob) -> Artifact:
        record = self._owner(tx, run, live=True)
        _check_room(self._files(tx, record), path)
        self._blobs.hold(tx, ctx, blob.zone, blob.digest)
        name = _name(record, path)
        old = tx.get(name)
        body = {"path": path, "digest": blob.digest, "size": blob.size, "run": record.key.name, "made_at": ctx.now()}
        terms = {"digest": blob.digest, f"at.{blob.zone}": "yes", "run": record.key.name}
        tx.put(name, body, rev=old.rev if old else None, zone=blob.zone, label=record.label, terms=terms)
        tx.emit("track.attach", record.ref, path=_loggable_path(record, path), digest=blob.digest, size_bytes=blob.size)
        return Artifact(path, blob.size, blob.digest, made_at=ctx.now())

    def _file(self, tx: Reader, record: Record, path: str) -> Record:
        found = tx.get(_name(record, path))
        if found is None:
            raise NotFound(
                f"{record.ref.bare} has no file {path[:80]}", f"falaj track artifacts {record.ref.bare}", record.ref
            )
        return found

    def _files(self, tx: Reader, record: Record) -> list[Record]:
        found = find_all(tx, "artifact", terms={"run": record.key.name})
        return sorted(found, key=lambda one: str(one.body["path"]))


class _Sink:
    """Where a composed tree puts its pages: beside the files, under the model's name."""

    def __init__(self, ctx: Context, blobs: BlobStore, thing: str, zone: str) -> None:
        self._ctx, self._blobs, self._thing, self._zone = ctx, blobs, thing, zone

    def put(self, chunks: Iterable[bytes]) -> Receipt:
        """One new piece."""
        permit = self._ctx.permit("write", self._thing, self._zone)
        blob = self._blobs.put(self._ctx, self._thing, self._zone, chunks, permit)
        return Receipt(blob.digest, blob.size, "")

    def bundle(self, receipts: tuple[Receipt, ...]) -> Receipt:
        """Pieces, new and old, tied together."""
        whole = bundle_of(self._ctx, self._zone, tuple((one.digest, one.size) for one in receipts))
        self._blobs.project(self._ctx, lambda tx: assemble(tx, whole))
        return Receipt(f"b3:{whole.digest}", whole.size, "")


def _loggable_path(run: Record, path: str) -> str:
    """A path as the log, which auditors and hooks read, may hold it: code that reads labelled data chose it."""
    return path if run.label.is_open else WITHHELD


def check_path(path: str) -> str:
    """A path inside a run: relative, plain, and never a way out."""
    parts = path.split("/")
    plain = 0 < len(path) <= LONGEST_PATH and path.isprintable() and "\\" not in path
    if not plain or any(part in ("", ".", "..") for part in parts):
        raise Invalid(f"{path[:80]!r} is no path inside a run", "for example plots/roc.png: relative, without ..")
    return path


def _name(record: Record, path: str) -> Ref:
    digest = hashlib.blake2b(path.encode(), digest_size=20).hexdigest()
    return Ref("artifact", record.key.project, f"{record.key.name}.{digest}")


def _check_room(files: list[Record], path: str) -> None:
    """A path may not be a file and a folder at once, on whatever disk it is laid out later."""
    for one in files:
        known = str(one.body["path"])
        if _inside(known, path) or _inside(path, known):
            raise Conflict(f"{known[:80]} is there", "a name is a file or a folder, not both")
    if len(files) >= MOST_FILES and all(one.body["path"] != path for one in files):
        raise Invalid(f"a run with {len(files)} files", f"at most {MOST_FILES}; put large sets into the catalog")


def _inside(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")


def _as_artifact(record: Record) -> Artifact:
    body = record.body
    return Artifact(body["path"], body["size"], body["digest"], made_at=body["made_at"])


def _level(files: list[Artifact], folder: str) -> tuple[Artifact, ...]:
    """Files right in a folder, and the folders in it with the size of all they hold."""
    found: list[Artifact] = []
    folders: dict[str, int] = {}
    for file in files:
        rest = file.path[len(folder) + 1 :] if folder else file.path
        if file.path == folder:
            continue
        head, slash, _ = rest.partition("/")
        if slash:
            name = f"{folder}/{head}" if folder else head
            folders[name] = folders.get(name, 0) + file.size_bytes
        else:
            found.append(file)
    found += [Artifact(name, size, folder=True) for name, size in folders.items()]
    return tuple(sorted(found, key=lambda one: one.path))


def _under(files: list[Record], folder: str, run: Ref) -> list[tuple[bytes, Receipt]]:
    """(path below the folder, what it is) of each file, for the tree of a version."""
    found: list[tuple[bytes, Receipt]] = []
    for one in files:
        path, body = str(one.body["path"]), one.body
        if path == folder:
            found.append((path.rpartition("/")[2].encode(), Receipt(body["digest"], body["size"], "")))
        elif not folder or _inside(path, folder):
            rest = path[len(folder) + 1 :] if folder else path
            found.append((rest.encode(), Receipt(body["digest"], body["size"], "")))
    if not found:
        raise NotFound(f"{run.bare} has no files under {folder[:80]!r}", f"falaj track artifacts {run.bare}", run)
    return sorted(found)


def _ours(run: Record) -> Mapping[str, Ref]:
    """The things of ours that a run used, by role; other people's tools name data as they like."""
    found: dict[str, Ref] = {}
    for one in run.body["inputs"]:
        if one.get("ref"):
            name = _NO_ROLE.sub("-", one["name"]).lstrip(" .-")[:100] or "data"
            more = (f"{name}-{n}" for n in count(1))
            role = next(role for role in chain((name,), more) if role not in found and role not in OWNERS)
            found[role] = Ref.parse(one["ref"])
    return found
