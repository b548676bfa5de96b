"""A bundle served by itself: `python falaj-edge.pyz serve edge.tar --http 127.0.0.1:8000`. No platform, no network.

Nothing of a bundle is believed before its signature is proved, no file is kept that the signed manifest does not name,
and the bytes that are loaded are hashed once more as they are loaded.
"""

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from falaj.core.errors import CorruptData, FalajError, Invalid
from falaj.infer.inference_server import InferenceServer, run_event_loop, start_process_server
from falaj.infer.records import ModelConfig, RequestLogConfig, ServerConfig

BUNDLE_FORMAT = "falaj-edge/1"
MANIFEST_FILE, SIGNATURE_FILE = "manifest.json", "signature.json"
SIGNED_PREFIX = b"falaj edge bundle 1\n"
MAX_MANIFEST_BYTES, MAX_FILE_BYTES, CHUNK_BYTES = 32 << 20, 64 << 30, 1 << 20
COUNT_INTERVAL_S = 10.0
_REBUILD_HINT = "do not use it: have it made again by falaj serve bundle"


class VerifiedBundle(NamedTuple):
    """A bundle that was proved."""

    manifest: dict[str, Any]
    fingerprint: str
    """SHA-256 of the public key that signed it."""
    model: str
    """The folder of the model; empty when it was only looked at."""


def run_edge_command(arguments: list[str]) -> int:
    """Verify a bundle, or serve it until told to end."""
    options = _parse_arguments(arguments)
    try:
        folder = Path(options.folder)
        if options.what == "verify":
            bundle = open_bundle(Path(options.bundle), None, options.trust)
            print(json.dumps({"verified": True, **_describe_bundle(bundle)}))  # noqa: T201
            return 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        bundle = open_bundle(Path(options.bundle), folder, options.trust)
        (folder / "logs").mkdir(mode=0o700, exist_ok=True)
        (folder / "logs" / MANIFEST_FILE).write_text(json.dumps(bundle.manifest))
        return run_event_loop(_serve_bundle(bundle, _build_config(bundle, folder, options), folder / "logs"))
    except FalajError as error:
        print(f"falaj-edge: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except OSError as error:
        print(f"falaj-edge: {error}", file=sys.stderr)  # noqa: T201
        return 2


def open_bundle(path: Path, folder: Path | None, trust: str = "") -> VerifiedBundle:
    """The bundle, once everything in it is proved; its model lies in `folder` then."""
    pin_path = folder / "trusted" if folder is not None else None
    trusted_fingerprint = trust.lower() or (
        pin_path.read_text().strip() if pin_path is not None and pin_path.is_file() else ""
    )
    try:
        with tarfile.open(path, "r:") as tar:
            members = iter(tar)
            text = _read_member(tar, next(members, None), MANIFEST_FILE)
            manifest, fingerprint = verify_manifest(
                text, _read_member(tar, next(members, None), SIGNATURE_FILE), trusted_fingerprint
            )
            model_folder = _unpack_files(tar, members, manifest, folder)
    except tarfile.TarError as error:
        raise CorruptData(f"{path.name} is no bundle: {error}", _REBUILD_HINT) from error
    if pin_path is not None and not pin_path.exists():
        pin_path.write_text(fingerprint)
    return VerifiedBundle(manifest, fingerprint, model_folder)


def verify_manifest(manifest_bytes: bytes, signature_document: bytes, trust: str) -> tuple[dict[str, Any], str]:
    """The manifest, if its signature is that of the key, and the key the one that is trusted; and its fingerprint."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        signature_fields = json.loads(signature_document)
        pem, signature_bytes = str(signature_fields["key"]).encode(), bytes.fromhex(signature_fields["signature"])
        key = load_pem_public_key(pem)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise CorruptData("the bundle is signed with a key of another kind", _REBUILD_HINT)
        key.verify(signature_bytes, SIGNED_PREFIX + manifest_bytes, ec.ECDSA(hashes.SHA256()))
        manifest = json.loads(manifest_bytes)
    except (InvalidSignature, UnsupportedAlgorithm) as error:
        raise CorruptData("the signature is not that of this bundle", _REBUILD_HINT) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptData("the bundle's manifest or signature cannot be read", _REBUILD_HINT) from error
    fingerprint = hashlib.sha256(pem).hexdigest()
    if trust and fingerprint != trust:
        raise CorruptData(
            f"the bundle was signed by another key: {fingerprint}", f"here {trust} is trusted, and no other"
        )
    if not isinstance(manifest, dict) or manifest.get("format") != BUNDLE_FORMAT or not _is_complete_manifest(manifest):
        raise CorruptData("this is no bundle that this release knows", "use the server that came with it")
    return manifest, fingerprint


def _is_complete_manifest(manifest: dict[str, Any]) -> bool:
    files, keys = manifest.get("files"), manifest.get("keys")
    has_texts = all(isinstance(manifest.get(name), str) for name in ("id", "name", "endpoint", "model"))
    has_named_files = isinstance(files, dict) and all(
        _is_relative_path(path) and isinstance(digest, str) for path, digest in files.items()
    )
    return has_texts and has_named_files and isinstance(keys, list) and type(manifest.get("revision")) is int


def _is_relative_path(path: str) -> bool:
    parts = path.split("/")
    return not path.startswith("/") and "\0" not in path and not any(part in ("", ".", "..") for part in parts)


def _unpack_files(
    tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo], manifest: dict[str, Any], folder: Path | None
) -> str:
    """Read every file, each as the manifest names it, and write the model's; gives its folder."""
    remaining_digests = dict(manifest["files"])
    target = folder / f"model-{hashlib.sha256(manifest['id'].encode()).hexdigest()[:16]}" if folder else None
    if target is not None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700)
    for member in members:
        expected_digest = remaining_digests.pop(member.name, None)
        if expected_digest is None:
            raise CorruptData(f"{member.name[:200]!r} is not in the manifest, or twice in the bundle", _REBUILD_HINT)
        source = _open_member(tar, member, MAX_FILE_BYTES)
        is_model_file = target is not None and member.name.startswith("model/")
        with (
            _create_model_file(target, member.name)
            if target is not None and is_model_file
            else contextlib.nullcontext() as target_file
        ):
            digest = hashlib.sha256()
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                if target_file is not None:
                    target_file.write(chunk)
        if digest.hexdigest() != expected_digest:
            raise CorruptData(f"{member.name[:200]!r} is not what was signed", _REBUILD_HINT)
    if remaining_digests:
        raise CorruptData(f"{min(remaining_digests)[:200]!r} is missing from the bundle", _REBUILD_HINT)
    return str(target) if target is not None else ""


def _create_model_file(target: Path, name: str) -> Any:
    path = target / PurePosixPath(name).relative_to("model")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo | None, name: str) -> bytes:
    if member is None or member.name != name:
        raise CorruptData(f"the bundle does not begin with {MANIFEST_FILE} and {SIGNATURE_FILE}", _REBUILD_HINT)
    content: bytes = _open_member(tar, member, MAX_MANIFEST_BYTES).read()
    return content


def _open_member(tar: tarfile.TarFile, member: tarfile.TarInfo, max_bytes: int) -> Any:
    source = tar.extractfile(member) if member.isreg() and 0 <= member.size <= max_bytes else None
    if source is None:
        raise CorruptData(f"{member.name[:200]!r} is no plain file, or too large", _REBUILD_HINT)
    return source


def _build_config(bundle: VerifiedBundle, folder: Path, options: argparse.Namespace) -> ServerConfig:
    manifest = bundle.manifest
    files = {
        path.removeprefix("model/"): digest for path, digest in manifest["files"].items() if path.startswith("model/")
    }
    model = ModelConfig(manifest["name"], str(manifest["revision"]), bundle.model, files=files)
    sample = manifest.get("sample", 0.01) if options.sample is None else options.sample
    if not 0 <= float(sample) <= 1:
        raise Invalid(f"a sample of {sample}", "a share from 0 to 1")
    return ServerConfig(
        models=(model,),
        http=options.http,
        grpc=options.grpc,
        keys=tuple(map(str, manifest["keys"])),
        cert=options.cert,
        key=options.key,
        journal=RequestLogConfig(str(folder / "logs"), float(sample)),
        name=manifest["name"],
    )


async def _serve_bundle(bundle: VerifiedBundle, config: ServerConfig, logs: Path) -> int:
    server, end_event = await start_process_server(config)
    print(json.dumps({**server.ready(), **_describe_bundle(bundle)}), flush=True)  # noqa: T201
    previous_totals = (0, 0, 0)
    tally_log = _TallyLog(server, config.models[0].version, logs)
    while not end_event.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(end_event.wait(), COUNT_INTERVAL_S)
        if end_event.is_set():
            await server.drain()
        previous_totals = _write_counts(server, config, logs, previous_totals)
        tally_log.write()
    return server.exit_code


def _write_counts(
    server: InferenceServer, config: ServerConfig, logs: Path, previous_totals: tuple[int, int, int]
) -> tuple[int, int, int]:
    """A line for what was asked since the last one; the numbers so far."""
    stats = server.engine.statistics()["model_stats"]
    inference_stats = stats[0]["inference_stats"] if stats else {"success": {}, "fail": {}}
    success, failure = inference_stats["success"], inference_stats["fail"]
    totals = int(success.get("count", 0)), int(failure.get("count", 0)), int(success.get("ns", 0))
    done, failed, spent_ns = (current - previous for current, previous in zip(totals, previous_totals, strict=True))
    if done <= 0 and failed <= 0:
        return previous_totals
    line = {
        "at": time.time(),
        "version": config.models[0].version,
        "requests": done + failed,
        "errors": failed,
        "mean_us": spent_ns // 1000 // max(done, 1),
    }
    with (logs / "counts.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return totals


class _TallyLog:
    """What a watched model counted, line by line beside the counts; `falaj serve sync` carries it."""

    def __init__(self, server: InferenceServer, version: str, logs: Path) -> None:
        self._row_counters = [session.watching for session in server.engine.sessions() if session.watching is not None]
        self._version, self._file = version, logs / "counts.jsonl"
        self._process_id, self._line_number, self._counted_since = secrets.token_hex(8), 0, time.time()

    def write(self) -> None:
        """A line for what was counted since the last one."""
        for row_counter in self._row_counters:
            tally, counted_since, self._counted_since = row_counter.take(), self._counted_since, time.time()
            if tally.seen:
                self._line_number += 1
                line = {
                    "at": min(counted_since, self._counted_since),
                    "until": self._counted_since,
                    "version": self._version,
                    "life": self._process_id,
                    "n": self._line_number,
                    "profile": row_counter.digest,
                    "tally": base64.b64encode(tally.to_bytes()).decode(),
                }
                with self._file.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def _describe_bundle(bundle: VerifiedBundle) -> dict[str, Any]:
    field_names = ("id", "endpoint", "name", "revision", "model", "made_at", "made_by")
    return {"signed_by": bundle.fingerprint, **{name: bundle.manifest.get(name) for name in field_names}}


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("falaj-edge", description="Serve a bundle that falaj serve bundle made.")
    parser.add_argument("what", choices=("serve", "verify"))
    parser.add_argument("bundle", help="the bundle, for example edge.tar")
    parser.add_argument("--http", default="127.0.0.1:8000", help="where to listen")
    parser.add_argument("--grpc", default="", help="where to listen for gRPC; nowhere when left out")
    parser.add_argument("--folder", default="falaj-edge", help="where the model and what is logged lie")
    parser.add_argument("--trust", default="", help="the fingerprint of the only key that may have signed it")
    parser.add_argument(
        "--sample", type=float, help="the share of requests that are kept; as the endpoint's by default"
    )
    parser.add_argument("--cert", default="", help="a certificate (PEM); needed to listen beyond this machine")
    parser.add_argument("--key", default="", help="its key (PEM)")
    return parser.parse_args(arguments)
