"""Versions as OCI artefacts: a layer for each file, as ORAS lays them out, or one tar of many; and back again."""

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from falaj.catalog.records import Opened, Version
from falaj.catalog.signing import MEDIA_TYPE as SIGNATURE
from falaj.core.errors import Corrupt, Invalid, QuotaExceeded
from falaj.exchange.intake import inside
from falaj.exchange.registry import DIGEST, MANIFEST, Advance, Registry
from falaj.snapshot.format import Entry
from falaj.snapshot.read import Snapshot
from falaj.store.codec import to_plain

ARTEFACT = "application/vnd.falaj.version.v1+json"
FILE, TAR, TAR_GZ = ("application/octet-stream", *(f"application/vnd.oci.image.layer.v1.tar{z}" for z in ("", "+gzip")))
TITLE = "org.opencontainers.image.title"
UNPACK, ORAS_UNPACK, EXECUTABLE = "vnd.falaj.unpack", "io.deis.oras.content.unpack", "vnd.falaj.executable"
MOST_FILES = 100
"""From here on one tar is easier on a registry than a layer for each."""
MOST_LAYERS, MOST_MEMBERS, MOST_DOCUMENT, MOST_HEADER = 4096, 10_000_000, 32 << 20, 1 << 20
ROOMY, MOST_RATIO = 1 << 30, 100
"""A packed archive may unpack to so much, or to so many times its size, whichever is more."""
_PIECE = 1 << 20
_SIGNATURE_TITLE = "model.sig"
T = TypeVar("T")


class Descriptor(Struct, rename="camel", omit_defaults=True, frozen=True):
    """What a manifest says of a blob. Addresses that a stranger's manifest gives beside it are not read."""

    media_type: str
    digest: Annotated[str, Meta(pattern=rf"\A{DIGEST}\Z")]
    size: Annotated[int, Meta(ge=0)]
    annotations: dict[str, str] | None = None

    def note(self, name: str) -> str:
        """One of its annotations, or nothing."""
        return (self.annotations or {}).get(name, "")


class Manifest(Struct, rename="camel", omit_defaults=True):
    """What is an artefact: a description and its layers."""

    config: Descriptor
    layers: Annotated[tuple[Descriptor, ...], Meta(max_length=MOST_LAYERS)]
    schema_version: Literal[2]
    media_type: str = ""
    artifact_type: str = ""
    annotations: dict[str, str] | None = None


class Told(Struct, omit_defaults=True):
    """The description: what its publisher said of the version. Strangers' artefacts say nothing."""

    ref: str = ""
    root: str = ""
    message: str = ""
    label: dict[str, Any] | None = None
    tags: dict[str, str] = {}
    table: dict[str, Any] | None = None
    card: dict[str, Any] | None = None
    key: str = ""
    """The public key that made the signature; it proves nothing about who holds it."""


class Sender:
    """One version on its way into a repository."""

    def __init__(self, registry: Registry, folder: Path, advance: Advance) -> None:
        self._registry, self._folder, self._advance = registry, folder, advance
        self.sent_bytes = 0

    def send(self, opened: Opened, version: Version, snapshot: Snapshot) -> str:
        """Everything, then the manifest that names it; gives its digest."""
        entries = list(islice(snapshot.entries(), MOST_FILES + 1))
        plain = len(entries) <= MOST_FILES and all(_decodes(entry.path) for entry in entries)
        layers = [self._file(snapshot, entry) for entry in entries] if plain else [self._tar(snapshot, version)]
        if opened.signature:
            titles = {layer.note(TITLE) for layer in layers}
            notes = {TITLE: _SIGNATURE_TITLE} if _SIGNATURE_TITLE not in titles else {}
            layers.append(self._blob(SIGNATURE, (opened.signature.encode(),), notes))
        told = Told(
            str(version.ref), version.root, version.message, version.label.to_dict(), dict(version.tags),
            to_plain(version.table), to_plain(version.card), opened.key,
        )  # fmt: skip
        config = self._blob(ARTEFACT, (msgspec.json.encode(told, order="deterministic"),))
        notes = {TITLE: str(version.ref)}
        manifest = Manifest(config, tuple(layers), 2, MANIFEST, ARTEFACT, notes)
        return self._registry.put_manifest(msgspec.json.encode(manifest))

    def _file(self, snapshot: Snapshot, entry: Entry) -> Descriptor:
        notes = {TITLE: entry.path.decode(), **({EXECUTABLE: "true"} if entry.executable else {})}
        return self._blob(FILE, snapshot.read(_plain(entry)), notes)

    def _tar(self, snapshot: Snapshot, version: Version) -> Descriptor:
        """Every file, in order, without times and owners: the same version is the same bytes."""
        file = self._folder / "blob"
        with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
            archive.copybufsize = _PIECE  # type: ignore[attr-defined]
            for entry in snapshot.entries():
                member = tarfile.TarInfo(os.fsdecode(_plain(entry).path))
                member.size, member.mode = entry.size, 0o755 if entry.executable else 0o644
                archive.addfile(member, _Reader(snapshot.read(entry)))  # type: ignore[arg-type]
                archive.members = []  # type: ignore[attr-defined]  # else every name is kept in memory
        return self._send(TAR, file, {TITLE: f"{version.ref.name}.tar", UNPACK: "true"})

    def _blob(self, media: str, pieces: Iterable[bytes], notes: dict[str, str] | None = None) -> Descriptor:
        file = self._folder / "blob"
        with file.open("wb") as out:
            out.writelines(pieces)
        return self._send(media, file, notes)

    def _send(self, media: str, file: Path, notes: dict[str, str] | None) -> Descriptor:
        """Send a file unless its bytes are there, and forget it."""
        with file.open("rb") as opened:
            digest = f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}"
        blob = Descriptor(media, digest, file.stat().st_size, notes or None)
        if self._registry.upload(file, blob.digest, self._advance):
            self.sent_bytes += blob.size
        file.unlink()
        return blob


class Receiver:
    """One artefact on its way out of a repository, into an empty folder."""

    def __init__(self, registry: Registry, folder: Path, stage: Path) -> None:
        self._registry, self._folder, self._stage = registry, folder, stage
        self.told, self.signature = Told(), ""
        self.digest, data = registry.manifest()
        self._manifest = _read(data, Manifest, "the manifest (is it an index? then name one of its digests)")
        self.size_bytes = sum(layer.size for layer in self._manifest.layers)

    def receive(self, advance: Advance) -> None:
        """Every file into the stage, checked; what is said of them into `told`, what proves them into `signature`."""
        free = shutil.disk_usage(self._stage).free
        if self.size_bytes > free:
            raise QuotaExceeded(f"the artefact has {self.size_bytes} bytes and {free} are free", "make room first")
        config = self._manifest.config
        if config.media_type == ARTEFACT:
            self.told = _read(self._document(config), Told, "the version's description")
        for layer in self._manifest.layers:
            if layer.media_type == SIGNATURE:
                self.signature = self._document(layer).decode("utf-8", "replace")
            else:
                self._layer(layer, advance)

    def _layer(self, layer: Descriptor, advance: Advance) -> None:
        title = layer.note(TITLE)
        # ORAS in Go marks a folder by a note, ORAS in Python by its media type.
        packed = layer.note(ORAS_UNPACK) == "true" or (
            layer.media_type == TAR_GZ and not title.endswith((".gz", ".tgz"))
        )
        if not title:
            raise Invalid("it has layers without names: a container's, and not files", "pull what was pushed as files")
        if packed or (layer.media_type == TAR and layer.note(UNPACK) == "true"):
            file = self._folder / "layer"
            self._registry.download(layer.digest, layer.size, file, advance)
            _unpack(_unzipped(file) if packed else file, self._stage)
            return
        into = _new(self._stage, title)
        self._registry.download(layer.digest, layer.size, into, advance)
        into.chmod(0o755 if layer.note(EXECUTABLE) == "true" else 0o644)

    def _document(self, blob: Descriptor) -> bytes:
        if blob.size > MOST_DOCUMENT:
            raise Invalid(f"{blob.digest} has {blob.size} bytes", f"what describes files has at most {MOST_DOCUMENT}")
        file = self._folder / "document"
        self._registry.download(blob.digest, blob.size, file, lambda amount: None)
        data = file.read_bytes()
        file.unlink()
        return data


def _read(data: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Invalid(f"{what} cannot be read: {error}", "pull what was pushed as an OCI artefact") from error


def _plain(entry: Entry) -> Entry:
    if entry.kind != "file":
        name = entry.path.decode("utf-8", "backslashreplace")
        raise Invalid(f"{name!r:.200} is a link, and artefacts hold files only", "push a version without links")
    return entry


def _decodes(path: bytes) -> bool:
    return path.decode("utf-8", "replace").encode() == path


def _new(stage: Path, name: str) -> Path:
    """Where a file is to lie that is not there yet. Nothing in the stage is a link, so nothing leads out of it."""
    path = inside(stage, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        taken = path.exists()
    except OSError as error:
        raise Invalid(f"{name!r:.200} cannot lie where it says: {error.strerror}", "ask whoever made it") from error
    if taken:
        raise Invalid(f"two files are named {name!r:.200}", "ask whoever made it")
    return path


def _unzipped(file: Path) -> Path:
    """The archive without its packing; not more than an honest one unpacks to."""
    left, into = max(ROOMY, MOST_RATIO * file.stat().st_size), file.with_suffix(".tar")
    try:
        with gzip.open(file) as source, into.open("wb") as out:
            while piece := source.read(_PIECE):
                left -= len(piece)
                if left < 0:
                    raise Invalid("a layer unpacks to far more than it is", "an archive like this is made to do harm")
                out.write(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Corrupt("a layer is not packed as it says", "ask whoever made it") from error
    finally:
        file.unlink()
    return into


def _unpack(file: Path, stage: Path) -> None:
    """Files and folders of an archive; whatever else is in it is refused."""
    count = 0
    try:
        with file.open("rb") as opened, tarfile.open(fileobj=cast(IO[bytes], _Careful(opened)), mode="r:") as archive:
            for member in iter(archive.next, None):
                archive.members = []  # type: ignore[attr-defined]
                count += 1
                if count > MOST_MEMBERS or not (member.isdir() or (member.isreg() and not member.issparse())):
                    raise Invalid(
                        f"an archive holds {member.name!r:.200}, which is no plain file", "ask whoever made it"
                    )
                source = archive.extractfile(member)
                if source is not None:
                    _extract(source, member, stage)
    except (tarfile.TarError, EOFError) as error:
        raise Corrupt("a layer is no whole archive", "ask whoever made it") from error
    finally:
        file.unlink()


def _extract(source: IO[bytes], member: tarfile.TarInfo, stage: Path) -> None:
    into = _new(stage, member.name)
    with source, into.open("xb") as out:
        shutil.copyfileobj(source, out, _PIECE)
    if into.stat().st_size != member.size:
        raise Corrupt(f"{member.name!r:.200} is cut short", "ask whoever made it")
    into.chmod(0o755 if member.mode & 0o100 else 0o644)


class _Careful:
    """A file of which nobody reads much at once: a header that claims to be gigabytes long is none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_HEADER:
            raise tarfile.ReadError("a header too long")
        return self._file.read(size)


class _Reader:
    """Pieces as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data
