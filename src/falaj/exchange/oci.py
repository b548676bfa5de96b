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

from falaj.catalog.model_signing import MEDIA_TYPE as SIGNATURE
from falaj.catalog.records import CatalogVersion, OpenedVersion
from falaj.core.errors import CorruptData, Invalid, QuotaExceeded
from falaj.exchange.oci_registry import DIGEST_PATTERN, MANIFEST_TYPE, RegistryClient, ReportProgress
from falaj.exchange.untrusted_input import resolve_inside
from falaj.snapshot.tree_format import TreeEntry
from falaj.snapshot.tree_reader import TreeSnapshot
from falaj.store.codec import to_plain

ARTIFACT_TYPE = "application/vnd.falaj.version.v1+json"
FILE_MEDIA_TYPE, TAR_MEDIA_TYPE, TAR_GZ_MEDIA_TYPE = (
    "application/octet-stream",
    *(f"application/vnd.oci.image.layer.v1.tar{suffix}" for suffix in ("", "+gzip")),
)
TITLE_ANNOTATION = "org.opencontainers.image.title"
UNPACK_ANNOTATION, ORAS_UNPACK_ANNOTATION, EXECUTABLE_ANNOTATION = (
    "vnd.falaj.unpack",
    "io.deis.oras.content.unpack",
    "vnd.falaj.executable",
)
MAX_FILE_LAYERS = 100
"""From here on one tar is easier on a registry than a layer for each."""
MAX_LAYERS, MAX_ARCHIVE_MEMBERS, MAX_DOCUMENT_BYTES, MAX_HEADER_BYTES = 4096, 10_000_000, 32 << 20, 1 << 20
MIN_UNPACK_LIMIT_BYTES, MAX_UNPACK_RATIO = 1 << 30, 100
"""A packed archive may unpack to so much, or to so many times its size, whichever is more."""
_COPY_BYTES = 1 << 20
_SIGNATURE_TITLE = "model.sig"
DocumentT = TypeVar("DocumentT")


class BlobDescriptor(Struct, rename="camel", omit_defaults=True, frozen=True):
    """What a manifest says of a blob. Addresses that a stranger's manifest gives beside it are not read."""

    media_type: str
    digest: Annotated[str, Meta(pattern=rf"\A{DIGEST_PATTERN}\Z")]
    size: Annotated[int, Meta(ge=0)]
    annotations: dict[str, str] | None = None

    def note(self, name: str) -> str:
        """One of its annotations, or nothing."""
        return (self.annotations or {}).get(name, "")


class ArtifactManifest(Struct, rename="camel", omit_defaults=True):
    """What is an artefact: a description and its layers."""

    config: BlobDescriptor
    layers: Annotated[tuple[BlobDescriptor, ...], Meta(max_length=MAX_LAYERS)]
    schema_version: Literal[2]
    media_type: str = ""
    artifact_type: str = ""
    annotations: dict[str, str] | None = None


class VersionDescription(Struct, omit_defaults=True):
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


class ArtifactSender:
    """One version on its way into a repository."""

    def __init__(self, registry: RegistryClient, folder: Path, advance: ReportProgress) -> None:
        self._registry, self._folder, self._advance = registry, folder, advance
        self.sent_bytes = 0

    def send(self, opened: OpenedVersion, version: CatalogVersion, snapshot: TreeSnapshot) -> str:
        """Everything, then the manifest that names it; gives its digest."""
        entries = list(islice(snapshot.entries(), MAX_FILE_LAYERS + 1))
        uses_file_layers = len(entries) <= MAX_FILE_LAYERS and all(_is_utf8(entry.path) for entry in entries)
        layers = (
            [self._send_file(snapshot, entry) for entry in entries]
            if uses_file_layers
            else [self._send_tar(snapshot, version)]
        )
        if opened.signature:
            titles = {layer.note(TITLE_ANNOTATION) for layer in layers}
            notes = {TITLE_ANNOTATION: _SIGNATURE_TITLE} if _SIGNATURE_TITLE not in titles else {}
            layers.append(self._send_blob(SIGNATURE, (opened.signature.encode(),), notes))
        description = VersionDescription(
            str(version.ref), version.root, version.message, version.label.to_dict(), dict(version.tags),
            to_plain(version.table), to_plain(version.card), opened.key,
        )  # fmt: skip
        config = self._send_blob(ARTIFACT_TYPE, (msgspec.json.encode(description, order="deterministic"),))
        notes = {TITLE_ANNOTATION: str(version.ref)}
        manifest = ArtifactManifest(config, tuple(layers), 2, MANIFEST_TYPE, ARTIFACT_TYPE, notes)
        return self._registry.put_manifest(msgspec.json.encode(manifest))

    def _send_file(self, snapshot: TreeSnapshot, entry: TreeEntry) -> BlobDescriptor:
        notes = {TITLE_ANNOTATION: entry.path.decode(), **({EXECUTABLE_ANNOTATION: "true"} if entry.executable else {})}
        return self._send_blob(FILE_MEDIA_TYPE, snapshot.read(_require_file(entry)), notes)

    def _send_tar(self, snapshot: TreeSnapshot, version: CatalogVersion) -> BlobDescriptor:
        """Every file, in order, without times and owners: the same version is the same bytes."""
        file = self._folder / "blob"
        with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
            archive.copybufsize = _COPY_BYTES  # type: ignore[attr-defined]
            for entry in snapshot.entries():
                member = tarfile.TarInfo(os.fsdecode(_require_file(entry).path))
                member.size, member.mode = entry.size, 0o755 if entry.executable else 0o644
                archive.addfile(member, _PieceReader(snapshot.read(entry)))  # type: ignore[arg-type]
                archive.members = []  # type: ignore[attr-defined]  # else every name is kept in memory
        return self._upload_blob(
            TAR_MEDIA_TYPE, file, {TITLE_ANNOTATION: f"{version.ref.name}.tar", UNPACK_ANNOTATION: "true"}
        )

    def _send_blob(self, media: str, pieces: Iterable[bytes], notes: dict[str, str] | None = None) -> BlobDescriptor:
        file = self._folder / "blob"
        with file.open("wb") as blob_file:
            blob_file.writelines(pieces)
        return self._upload_blob(media, file, notes)

    def _upload_blob(self, media: str, file: Path, notes: dict[str, str] | None) -> BlobDescriptor:
        """Send a file unless its bytes are there, and forget it."""
        with file.open("rb") as opened:
            digest = f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}"
        blob = BlobDescriptor(media, digest, file.stat().st_size, notes or None)
        if self._registry.upload(file, blob.digest, self._advance):
            self.sent_bytes += blob.size
        file.unlink()
        return blob


class ArtifactReceiver:
    """One artefact on its way out of a repository, into an empty folder."""

    def __init__(self, registry: RegistryClient, folder: Path, stage: Path) -> None:
        self._registry, self._folder, self._stage = registry, folder, stage
        self.told, self.signature = VersionDescription(), ""
        self.digest, data = registry.manifest()
        self._manifest = _decode_document(
            data, ArtifactManifest, "the manifest (is it an index? then name one of its digests)"
        )
        self.size_bytes = sum(layer.size for layer in self._manifest.layers)

    def receive(self, advance: ReportProgress) -> None:
        """Every file into the stage, checked; what is said of them into `told`, what proves them into `signature`."""
        free = shutil.disk_usage(self._stage).free
        if self.size_bytes > free:
            raise QuotaExceeded(f"the artefact has {self.size_bytes} bytes and {free} are free", "make room first")
        config = self._manifest.config
        if config.media_type == ARTIFACT_TYPE:
            self.told = _decode_document(self._read_document(config), VersionDescription, "the version's description")
        for layer in self._manifest.layers:
            if layer.media_type == SIGNATURE:
                self.signature = self._read_document(layer).decode("utf-8", "replace")
            else:
                self._receive_layer(layer, advance)

    def _receive_layer(self, layer: BlobDescriptor, advance: ReportProgress) -> None:
        title = layer.note(TITLE_ANNOTATION)
        # ORAS in Go marks a folder by a note, ORAS in Python by its media type.
        is_packed = layer.note(ORAS_UNPACK_ANNOTATION) == "true" or (
            layer.media_type == TAR_GZ_MEDIA_TYPE and not title.endswith((".gz", ".tgz"))
        )
        if not title:
            raise Invalid("it has layers without names: a container's, and not files", "pull what was pushed as files")
        if is_packed or (layer.media_type == TAR_MEDIA_TYPE and layer.note(UNPACK_ANNOTATION) == "true"):
            file = self._folder / "layer"
            self._registry.download(layer.digest, layer.size, file, advance)
            _unpack_archive(_unzip_layer(file) if is_packed else file, self._stage)
            return
        target = _new_file_path(self._stage, title)
        self._registry.download(layer.digest, layer.size, target, advance)
        target.chmod(0o755 if layer.note(EXECUTABLE_ANNOTATION) == "true" else 0o644)

    def _read_document(self, blob: BlobDescriptor) -> bytes:
        if blob.size > MAX_DOCUMENT_BYTES:
            raise Invalid(
                f"{blob.digest} has {blob.size} bytes", f"what describes files has at most {MAX_DOCUMENT_BYTES}"
            )
        file = self._folder / "document"
        self._registry.download(blob.digest, blob.size, file, lambda amount: None)
        data = file.read_bytes()
        file.unlink()
        return data


def _decode_document(data: bytes, document_type: type[DocumentT], document_name: str) -> DocumentT:
    try:
        return msgspec.json.decode(data, type=document_type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Invalid(f"{document_name} cannot be read: {error}", "pull what was pushed as an OCI artefact") from error


def _require_file(entry: TreeEntry) -> TreeEntry:
    if entry.kind != "file":
        name = entry.path.decode("utf-8", "backslashreplace")
        raise Invalid(f"{name!r:.200} is a link, and artefacts hold files only", "push a version without links")
    return entry


def _is_utf8(path: bytes) -> bool:
    return path.decode("utf-8", "replace").encode() == path


def _new_file_path(stage: Path, name: str) -> Path:
    """Where a file is to lie that is not there yet. Nothing in the stage is a link, so nothing leads out of it."""
    path = resolve_inside(stage, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_taken = path.exists()
    except OSError as error:
        raise Invalid(f"{name!r:.200} cannot lie where it says: {error.strerror}", "ask whoever made it") from error
    if is_taken:
        raise Invalid(f"two files are named {name!r:.200}", "ask whoever made it")
    return path


def _unzip_layer(file: Path) -> Path:
    """The archive without its packing; not more than an honest one unpacks to."""
    remaining_bytes, target = (
        max(MIN_UNPACK_LIMIT_BYTES, MAX_UNPACK_RATIO * file.stat().st_size),
        file.with_suffix(".tar"),
    )
    try:
        with gzip.open(file) as source, target.open("wb") as target_file:
            while piece := source.read(_COPY_BYTES):
                remaining_bytes -= len(piece)
                if remaining_bytes < 0:
                    raise Invalid("a layer unpacks to far more than it is", "an archive like this is made to do harm")
                target_file.write(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorruptData("a layer is not packed as it says", "ask whoever made it") from error
    finally:
        file.unlink()
    return target


def _unpack_archive(file: Path, stage: Path) -> None:
    """Files and folders of an archive; whatever else is in it is refused."""
    count = 0
    try:
        with (
            file.open("rb") as opened,
            tarfile.open(fileobj=cast(IO[bytes], _BoundedReader(opened)), mode="r:") as archive,
        ):
            for member in iter(archive.next, None):
                archive.members = []  # type: ignore[attr-defined]
                count += 1
                if count > MAX_ARCHIVE_MEMBERS or not (member.isdir() or (member.isreg() and not member.issparse())):
                    raise Invalid(
                        f"an archive holds {member.name!r:.200}, which is no plain file", "ask whoever made it"
                    )
                source = archive.extractfile(member)
                if source is not None:
                    _extract_member(source, member, stage)
    except (tarfile.TarError, EOFError) as error:
        raise CorruptData("a layer is no whole archive", "ask whoever made it") from error
    finally:
        file.unlink()


def _extract_member(source: IO[bytes], member: tarfile.TarInfo, stage: Path) -> None:
    target = _new_file_path(stage, member.name)
    with source, target.open("xb") as target_file:
        shutil.copyfileobj(source, target_file, _COPY_BYTES)
    if target.stat().st_size != member.size:
        raise CorruptData(f"{member.name!r:.200} is cut short", "ask whoever made it")
    target.chmod(0o755 if member.mode & 0o100 else 0o644)


class _BoundedReader:
    """A file of which nobody reads much at once: a header that claims to be gigabytes long is none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError("a header too long")
        return self._file.read(size)


class _PieceReader:
    """Pieces as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._remaining = pieces, b""

    def read(self, size: int) -> bytes:
        while len(self._remaining) < size and (piece := next(self._pieces, b"")):
            self._remaining += piece
        data, self._remaining = self._remaining[:size], self._remaining[size:]
        return data
