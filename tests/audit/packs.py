"""Packs for the tests to damage, and the verifier called in process for speed (its own process is tested as well)."""

import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from falaj.audit import evidence_pack, signed_note
from tests.audit.house import VERIFIER, House

Files = dict[str, bytes]


def load_verifier() -> Any:
    """The verifier as a module of its own, read from its file as an auditor would."""
    spec = importlib.util.spec_from_file_location("falaj_verify_under_test", VERIFIER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


verifier = load_verifier()


def check(path: Path, *options: str) -> dict[str, Any]:
    """The verifier's report, or {"ok": False} when it says that this is no pack at all."""
    try:
        report: dict[str, Any] = verifier.verify_path(
            verifier.parse_arguments([str(path), "--jobs", "1", "--quiet", *options])
        )
    except verifier.CannotCheckError as error:
        return {"ok": False, "first": {"what": str(error)}, "problems": []}
    return report


def zipped(files: Files) -> bytes:
    return b"".join(evidence_pack.generate_zip(files.items()))


def check_files(folder: Path, files: Files, *options: str) -> dict[str, Any]:
    path = folder / "pack.zip"
    path.write_bytes(zipped(files))
    return check(path, *options)


def resigned(files: Files, signer: Ed25519PrivateKey) -> Files:
    """The same files with a manifest that fits them, signed: what someone with the log's key can do."""
    manifest = json.loads(files["manifest.json"])
    inner = {name: data for name, data in files.items() if name not in ("manifest.json", "manifest.sig")}
    manifest["files"] = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in inner.items()}
    raw = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text = f"{evidence_pack.PACK_FORMAT}\n{manifest['origin']}\n{hashlib.sha256(raw).hexdigest()}\n"
    sig = signed_note.join_note(text, signed_note.sign_text(text, manifest["origin"], signer)).encode()
    return {**inner, "manifest.json": raw, "manifest.sig": sig}


def with_lines(files: Files, change: Callable[[list[bytes]], None], *, fix_leaves: bool) -> Files:
    """The first segment with its lines changed, and their recorded hashes too when the forger thinks of them."""
    name = min(n for n in files if n.endswith(".jsonl") and n.startswith("events/"))
    lines = files[name].split(b"\n")[:-1]
    change(lines)
    changed = dict(files)
    changed[name] = b"".join(line + b"\n" for line in lines)
    if fix_leaves:
        changed[name.replace(".jsonl", ".leaves")] = b"".join(hashlib.sha256(b"\0" + line).digest() for line in lines)
    return changed


def with_notes(files: Files, change: Callable[[list[str]], None]) -> Files:
    notes = [json.loads(line) for line in files["checkpoints.jsonl"].splitlines()]
    change(notes)
    return {**files, "checkpoints.jsonl": b"".join(json.dumps(n, ensure_ascii=False).encode() + b"\n" for n in notes)}


def small_log(house: House) -> House:
    """A dozen events, four checkpoints, one change of key."""
    for count in (3, 4):
        house.act(count)
        house.sealer.seal(house.ctx(), "bank", "home")
    house.signers.rotate("bank", "home")
    for count in (1, 4):
        house.act(count)
        house.sealer.seal(house.ctx(), "bank", "home")
    return house
