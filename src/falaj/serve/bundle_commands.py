"""Bundles for the edge: make one, and bring back what edge servers counted and kept; and the journal as a dataset."""

import hashlib
import io
import json
import secrets
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from falaj.core.client_command import Client, client_command
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.serve import edge_files
from falaj.serve.edge_operations import MAX_UPLOAD_BYTES, EdgeSyncResult, SignedManifest
from falaj.serve.records import RequestLogPage

SYNC_CHUNK_BYTES = MAX_UPLOAD_BYTES // 2
LOG_PAGE_LINES = 5_000


@dataclass(frozen=True, slots=True)
class BundleResult:
    """A bundle that was made. The keys are shown this once."""

    ref: Ref
    model: Ref
    revision: int
    path: str
    size_bytes: int
    server: str
    """Where the server lies beside it; the bundle holds it, too."""
    signed_by: str
    """The fingerprint to trust: python falaj-edge.pyz serve … --trust …"""
    keys: tuple[str, ...]


@client_command
def bundle(
    here: Client,
    endpoint: Annotated[Ref, "which endpoint"],
    out: Annotated[str, "the file to write, for example edge.tar"],
    revision: Annotated[int, "which revision; the one with the traffic when left out"] = 0,
    keys: Annotated[int, "how many keys to make for callers"] = 1,
    to: Annotated[str, "where it goes, for those who read the log"] = "",
    country: Annotated[str, "whose law holds there: a country, AE-DIFC or AE-ADGM; where you are when left out"] = "",
) -> BundleResult:
    """Pack an endpoint as one signed file that serves by itself: the model, the server, keys of callers.

    Whoever may not carry the model out hears it here, before a byte is written. The same revision gives the same
    bytes but for its manifest, which says when and by whom it was made.

    Example:
        falaj serve bundle endpoint:fraud/score --out edge.tar --to "branch 12" --country AE
    """
    path = Path(out).expanduser()
    if path.exists():
        raise Conflict(f"{path.name} is there already", "choose another name, or remove it")
    tokens = tuple(f"fje_{secrets.token_urlsafe(32)}" for _ in range(keys))
    hashes = tuple(hashlib.sha256(token.encode()).hexdigest() for token in tokens)
    packed: SignedManifest = here.serve.pack(endpoint, hashes, to or path.name, revision)
    manifest = json.loads(packed.manifest)
    model = Ref.parse(manifest["model"])
    here.catalog.carry(model, to or path.name, country or here.people.whoami().jurisdiction)
    with tempfile.TemporaryDirectory(prefix="falaj-bundle-") as scratch:
        folder = Path(scratch, "model")
        here.catalog.checkout(model, str(folder))
        _write_bundle(path, packed, manifest["files"], folder)
    server = path.parent / edge_files.SERVER_FILE
    server.write_bytes(edge_files.build_server_archive())
    signed_by = hashlib.sha256(packed.key.encode()).hexdigest()
    size = path.stat().st_size
    return BundleResult(endpoint.bare, model, manifest["revision"], str(path), size, str(server), signed_by, tokens)


@client_command
def sync(
    here: Client,
    folder: Annotated[str, "the folder `logs` of an edge server"],
    endpoint: Annotated[Ref | None, "the endpoint; as the bundle says when left out"] = None,
) -> EdgeSyncResult:
    """Bring what an edge server counted and kept into the platform. What is there already is left out.

    Example:
        falaj serve sync ./edge/logs
    """
    home = Path(folder).expanduser()
    try:
        manifest = json.loads((home / "manifest.json").read_bytes())
        ref, bundle_id = endpoint or Ref.parse(manifest["endpoint"]), str(manifest["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotFound(f"{folder[:200]} is no folder of an edge server", "its `logs` hold a manifest.json") from error
    requests = counts = 0
    for lines in _group_lines(_iterate_lines(home)):
        sync_result: EdgeSyncResult = here.serve.absorb(ref.bare, bundle_id, lines)
        requests, counts = requests + sync_result.requests, counts + sync_result.counts
    return EdgeSyncResult(ref.bare, requests, counts)


@client_command
def collect(
    here: Client,
    endpoint: Annotated[Ref, "which endpoint"],
    out: Annotated[Ref, "the dataset, for example dataset:fraud/score-log"],
    since_s: Annotated[float, "of the last so many seconds"] = 86400.0,
) -> Any:
    """Make the requests that were kept a version of a dataset: a row each, with inputs, outputs and who answered.

    Example:
        falaj serve collect endpoint:fraud/score dataset:fraud/score-log --since-s 604800
    """
    import pyarrow as pa
    from pyarrow import parquet

    rows = list(_iterate_log_rows(here, endpoint, since_s))
    if not rows:
        raise NotFound(f"nothing of {endpoint.bare} was kept in that time", "falaj serve change --more sample=0.1")
    with tempfile.TemporaryDirectory(prefix="falaj-collect-") as scratch:
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        parquet.write_table(table, Path(scratch, "requests.parquet"))
        return here.catalog.publish(out, scratch, inputs={"endpoint": endpoint.bare}, message=f"log of {endpoint.bare}")


def _write_bundle(path: Path, packed: SignedManifest, expected_digests: dict[str, str], model: Path) -> None:
    """The bundle, whole or not at all; every byte in it is one that was signed."""
    signature = json.dumps({"key": packed.key, "signature": packed.signature}).encode()
    small_files = {name: text.encode() for name, text in packed.texts.items()} | {
        edge_files.SERVER_FILE: edge_files.build_server_archive()
    }
    draft_path = path.with_name(f".{path.name}.part")
    try:
        with tarfile.open(draft_path, "x", format=tarfile.PAX_FORMAT) as tar:
            _add_entry(tar, "manifest.json", packed.manifest.encode())
            _add_entry(tar, "signature.json", signature)
            for name in sorted(expected_digests):
                source = model / name.removeprefix("model/") if name.startswith("model/") else small_files.get(name)
                if source is None or _source_digest(source) != expected_digests[name]:
                    hint = "use the same release of falaj here and there"
                    raise Conflict(f"{name[:200]} is not what the platform signed", hint)
                _add_entry(tar, name, source)
        draft_path.rename(path)
    finally:
        draft_path.unlink(missing_ok=True)


def _add_entry(tar: tarfile.TarFile, name: str, source: Path | bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime = 0o644, 0
    entry.size = len(source) if isinstance(source, bytes) else source.stat().st_size
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        tar.addfile(entry, file)


def _source_digest(source: Path | bytes) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _iterate_lines(folder: Path) -> Iterator[str]:
    for file in (folder / "counts.jsonl", *sorted(folder.glob("requests-*.jsonl"))):
        if file.is_file():
            with file.open(encoding="utf-8") as text:
                # A line without its end is still being written: it comes with the next sync.
                yield from (line for line in text if line.endswith("\n"))


def _group_lines(lines: Iterable[str]) -> Iterator[str]:
    pending_lines: list[str] = []
    size = 0
    for line in lines:
        if len(line) > SYNC_CHUNK_BYTES:
            raise Invalid(f"a line of {len(line)} bytes", "sample fewer or smaller requests")
        if size + len(line) > SYNC_CHUNK_BYTES:
            yield "".join(pending_lines)
            pending_lines, size = [], 0
        pending_lines.append(line)
        size += len(line)
    if pending_lines:
        yield "".join(pending_lines)


def _iterate_log_rows(client: Client, endpoint: Ref, since_s: float) -> Iterator[dict[str, Any]]:
    page_cursor = ""
    while True:
        page: RequestLogPage = client.serve.logs(endpoint, since_s=since_s, after=page_cursor, limit=LOG_PAGE_LINES)
        for log_line in page.lines:
            yield {
                "at": log_line.at,
                "id": log_line.id,
                "key": log_line.key,
                "arm": log_line.arm,
                "revision": log_line.revision,
                "status": log_line.status,
                "latency_us": log_line.latency_us,
                "caller": log_line.caller,
                **{f"input.{name}": value for name, value in log_line.request.items()},
                **{f"output.{name}": value for name, value in log_line.response.items()},
            }
        page_cursor = page.next
        if not page_cursor:
            return
