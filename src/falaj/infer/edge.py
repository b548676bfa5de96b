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

from falaj.core.errors import Corrupt, FalajError, Invalid
from falaj.infer.records import Config, Journal, ModelConfig
from falaj.infer.server import Server, begun, run

FORMAT = "falaj-edge/1"
MANIFEST, SIGNATURE = "manifest.json", "signature.json"
SIGNED = b"falaj edge bundle 1\n"
MOST_MANIFEST, MOST_FILE, CHUNK = 32 << 20, 64 << 30, 1 << 20
COUNT_S = 10.0
_AGAIN = "do not use it: have it made again by falaj serve bundle"


class Bundle(NamedTuple):
    """A bundle that was proved."""

    manifest: dict[str, Any]
    fingerprint: str
    """SHA-256 of the public key that signed it."""
    model: str
    """The folder of the model; empty when it was only looked at."""


def main(given: list[str]) -> int:
    """Verify a bundle, or serve it until told to end."""
    said = _arguments(given)
    try:
        folder = Path(said.folder)
        if said.what == "verify":
            bundle = opened(Path(said.bundle), None, said.trust)
            print(json.dumps({"verified": True, **_about(bundle)}))  # noqa: T201
            return 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        bundle = opened(Path(said.bundle), folder, said.trust)
        (folder / "logs").mkdir(mode=0o700, exist_ok=True)
        (folder / "logs" / MANIFEST).write_text(json.dumps(bundle.manifest))
        return run(_serve(bundle, _config(bundle, folder, said), folder / "logs"))
    except FalajError as error:
        print(f"falaj-edge: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except OSError as error:
        print(f"falaj-edge: {error}", file=sys.stderr)  # noqa: T201
        return 2


def opened(path: Path, folder: Path | None, trust: str = "") -> Bundle:
    """The bundle, once everything in it is proved; its model lies in `folder` then."""
    pin = folder / "trusted" if folder is not None else None
    known = trust.lower() or (pin.read_text().strip() if pin is not None and pin.is_file() else "")
    try:
        with tarfile.open(path, "r:") as tar:
            members = iter(tar)
            text = _read(tar, next(members, None), MANIFEST)
            manifest, fingerprint = proved(text, _read(tar, next(members, None), SIGNATURE), known)
            model = _unpacked(tar, members, manifest, folder)
    except tarfile.TarError as error:
        raise Corrupt(f"{path.name} is no bundle: {error}", _AGAIN) from error
    if pin is not None and not pin.exists():
        pin.write_text(fingerprint)
    return Bundle(manifest, fingerprint, model)


def proved(text: bytes, signature: bytes, trust: str) -> tuple[dict[str, Any], str]:
    """The manifest, if its signature is that of the key, and the key the one that is trusted; and its fingerprint."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        said = json.loads(signature)
        pem, made = str(said["key"]).encode(), bytes.fromhex(said["signature"])
        key = load_pem_public_key(pem)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise Corrupt("the bundle is signed with a key of another kind", _AGAIN)
        key.verify(made, SIGNED + text, ec.ECDSA(hashes.SHA256()))
        manifest = json.loads(text)
    except (InvalidSignature, UnsupportedAlgorithm) as error:
        raise Corrupt("the signature is not that of this bundle", _AGAIN) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt("the bundle's manifest or signature cannot be read", _AGAIN) from error
    fingerprint = hashlib.sha256(pem).hexdigest()
    if trust and fingerprint != trust:
        raise Corrupt(f"the bundle was signed by another key: {fingerprint}", f"here {trust} is trusted, and no other")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or not _whole(manifest):
        raise Corrupt("this is no bundle that this release knows", "use the server that came with it")
    return manifest, fingerprint


def _whole(manifest: dict[str, Any]) -> bool:
    files, keys = manifest.get("files"), manifest.get("keys")
    texts = all(isinstance(manifest.get(name), str) for name in ("id", "name", "endpoint", "model"))
    named = isinstance(files, dict) and all(_inside(path) and isinstance(one, str) for path, one in files.items())
    return texts and named and isinstance(keys, list) and type(manifest.get("revision")) is int


def _inside(path: str) -> bool:
    parts = path.split("/")
    return not path.startswith("/") and "\0" not in path and not any(part in ("", ".", "..") for part in parts)


def _unpacked(
    tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo], manifest: dict[str, Any], folder: Path | None
) -> str:
    """Read every file, each as the manifest names it, and write the model's; gives its folder."""
    left = dict(manifest["files"])
    target = folder / f"model-{hashlib.sha256(manifest['id'].encode()).hexdigest()[:16]}" if folder else None
    if target is not None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700)
    for member in members:
        wanted = left.pop(member.name, None)
        if wanted is None:
            raise Corrupt(f"{member.name[:200]!r} is not in the manifest, or twice in the bundle", _AGAIN)
        source = _file(tar, member, MOST_FILE)
        model = target is not None and member.name.startswith("model/")
        with _place(target, member.name) if target is not None and model else contextlib.nullcontext() as sink:
            digest = hashlib.sha256()
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                if sink is not None:
                    sink.write(chunk)
        if digest.hexdigest() != wanted:
            raise Corrupt(f"{member.name[:200]!r} is not what was signed", _AGAIN)
    if left:
        raise Corrupt(f"{min(left)[:200]!r} is missing from the bundle", _AGAIN)
    return str(target) if target is not None else ""


def _place(target: Path, name: str) -> Any:
    path = target / PurePosixPath(name).relative_to("model")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo | None, name: str) -> bytes:
    if member is None or member.name != name:
        raise Corrupt(f"the bundle does not begin with {MANIFEST} and {SIGNATURE}", _AGAIN)
    found: bytes = _file(tar, member, MOST_MANIFEST).read()
    return found


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> Any:
    source = tar.extractfile(member) if member.isreg() and 0 <= member.size <= most else None
    if source is None:
        raise Corrupt(f"{member.name[:200]!r} is no plain file, or too large", _AGAIN)
    return source


def _config(bundle: Bundle, folder: Path, said: argparse.Namespace) -> Config:
    manifest = bundle.manifest
    files = {path.removeprefix("model/"): one for path, one in manifest["files"].items() if path.startswith("model/")}
    model = ModelConfig(manifest["name"], str(manifest["revision"]), bundle.model, files=files)
    sample = manifest.get("sample", 0.01) if said.sample is None else said.sample
    if not 0 <= float(sample) <= 1:
        raise Invalid(f"a sample of {sample}", "a share from 0 to 1")
    return Config(
        models=(model,), http=said.http, grpc=said.grpc, keys=tuple(map(str, manifest["keys"])), cert=said.cert,
        key=said.key, journal=Journal(str(folder / "logs"), float(sample)), name=manifest["name"],
    )  # fmt: skip


async def _serve(bundle: Bundle, config: Config, logs: Path) -> int:
    server, ended = await begun(config)
    print(json.dumps({**server.ready(), **_about(bundle)}), flush=True)  # noqa: T201
    before = (0, 0, 0)
    tallies = _Tallies(server, config.models[0].version, logs)
    while not ended.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), COUNT_S)
        if ended.is_set():
            await server.drain()
        before = _count(server, config, logs, before)
        tallies.write()
    return server.exit_code


def _count(server: Server, config: Config, logs: Path, before: tuple[int, int, int]) -> tuple[int, int, int]:
    """A line for what was asked since the last one; the numbers so far."""
    stats = server.engine.statistics()["model_stats"]
    told = stats[0]["inference_stats"] if stats else {"success": {}, "fail": {}}
    good, bad = told["success"], told["fail"]
    now = int(good.get("count", 0)), int(bad.get("count", 0)), int(good.get("ns", 0))
    done, failed, spent_ns = (one - other for one, other in zip(now, before, strict=True))
    if done <= 0 and failed <= 0:
        return before
    line = {
        "at": time.time(), "version": config.models[0].version, "requests": done + failed, "errors": failed,
        "mean_us": spent_ns // 1000 // max(done, 1),
    }  # fmt: skip
    with (logs / "counts.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return now


class _Tallies:
    """What a watched model counted, line by line beside the counts; `falaj serve sync` carries it."""

    def __init__(self, server: Server, version: str, logs: Path) -> None:
        self._watching = [one.watching for one in server.engine.sessions() if one.watching is not None]
        self._version, self._file = version, logs / "counts.jsonl"
        self._life, self._number, self._since = secrets.token_hex(8), 0, time.time()

    def write(self) -> None:
        """A line for what was counted since the last one."""
        for one in self._watching:
            taken, since, self._since = one.take(), self._since, time.time()
            if taken.seen:
                self._number += 1
                line = {
                    "at": min(since, self._since), "until": self._since, "version": self._version, "life": self._life,
                    "n": self._number, "profile": one.digest, "tally": base64.b64encode(taken.to_bytes()).decode(),
                }  # fmt: skip
                with self._file.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def _about(bundle: Bundle) -> dict[str, Any]:
    known = ("id", "endpoint", "name", "revision", "model", "made_at", "made_by")
    return {"signed_by": bundle.fingerprint, **{name: bundle.manifest.get(name) for name in known}}


def _arguments(given: list[str]) -> argparse.Namespace:
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
    return parser.parse_args(given)
