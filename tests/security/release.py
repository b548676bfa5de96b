"""`python -m tests.security.release build|sign|verify`: a wheel that says how it was made, and who vouches for it.

    build              dist/falaj-*.whl (the same sources give the same bytes), its SBOM and its provenance
    sign               the provenance in a DSSE envelope, with the Ed25519 key (PEM) that FALAJ_SIGNING_KEY names
    verify KEY.pem     that the envelope is signed by this public key, and names exactly the wheel and the SBOM here

Formats: in-toto Statement 1 with SLSA provenance 1, DSSE 1, CycloneDX 1.6. Nobody is called: there is no transparency
log and no timestamp of others (as sigstore would give), so whoever verifies needs our public key by another way.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from tests.security.supply import sbom

ROOT = Path(__file__).parents[2]
KIND = "application/vnd.in-toto+json"
SBOM, PROVENANCE, ENVELOPE = "falaj.cdx.json", "falaj.provenance.json", "falaj.intoto.jsonl"


def main(words: list[str], dist: Path = ROOT / "dist") -> int:
    if words == ["build"]:
        build(dist)
    elif words == ["sign"]:
        sign(dist, Path(os.environ["FALAJ_SIGNING_KEY"]).read_bytes())
    elif words[:1] == ["verify"] and len(words) == 2:
        wrong = verify(dist, Path(words[1]).read_bytes())
        print(wrong or "signed by this key, and nothing was changed")
        return 1 if wrong else 0
    else:
        print(__doc__)
        return 2
    return 0


def build(dist: Path) -> None:
    """The wheel, its SBOM and what they were made from."""
    for old in dist.glob("falaj*"):
        old.unlink()
    commit, when = (_git("log", "-1", f"--format={what}") for what in ("%H", "%ct"))
    env = {**os.environ, "SOURCE_DATE_EPOCH": when or "315532800"}
    subprocess.run([sys.executable, "-m", "uv", "build", "-q", "--wheel", "-o", dist, ROOT], check=True, env=env)
    (dist / SBOM).write_text(json.dumps(sbom(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (dist / PROVENANCE).write_text(
        json.dumps(statement(dist, commit), indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


def statement(dist: Path, commit: str) -> dict[str, Any]:
    """in-toto: these files, SLSA: from that commit, by this recipe."""
    clean = not _git("status", "--porcelain")
    source = {"uri": "git+https://falaj.example/falaj", "digest": {"gitCommit": commit}}
    pins = {"uri": "file:constraints.txt", "digest": {"sha256": _sha256(ROOT / "constraints.txt")}}
    made = {
        "buildType": "https://falaj.example/build/uv-wheel@v1",
        "externalParameters": {"target": "wheel", "clean": clean},
        "resolvedDependencies": [source, pins],
    }
    builder = {"builder": {"id": "https://falaj.example/builders/make-wheel@v1"}}
    return {
        "_type": "https://in-toto.io/Statement/v1", "subject": _subject(dist),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": made, "runDetails": builder},
    }  # fmt: skip


def sign(dist: Path, pem: bytes) -> None:
    """One line: the envelope."""
    key = load_pem_private_key(pem, None)
    if not isinstance(key, Ed25519PrivateKey):
        raise SystemExit("FALAJ_SIGNING_KEY names no Ed25519 key: openssl genpkey -algorithm ed25519")
    payload = (dist / PROVENANCE).read_bytes()
    name = hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()
    signed = {"keyid": name, "sig": base64.b64encode(key.sign(_encoded(payload))).decode()}
    envelope = {"payloadType": KIND, "payload": base64.b64encode(payload).decode(), "signatures": [signed]}
    (dist / ENVELOPE).write_text(json.dumps(envelope) + "\n", encoding="utf-8")


def verify(dist: Path, pem: bytes) -> str:
    """What is wrong; nothing, when all is well."""
    key = load_pem_public_key(pem)
    if not isinstance(key, Ed25519PublicKey):
        return "this is no Ed25519 public key"
    try:
        envelope = json.loads((dist / ENVELOPE).read_bytes())
        payload = base64.b64decode(envelope["payload"], validate=True)
        (signed,) = envelope["signatures"]
        key.verify(base64.b64decode(signed["sig"], validate=True), _encoded(payload))
        named = json.loads(payload)["subject"] if envelope["payloadType"] == KIND else None
    except InvalidSignature:
        return "the envelope is not signed by this key"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the envelope cannot be read: {type(error).__name__}"
    return "" if named == _subject(dist) else "the files here are not those that were signed"


def _subject(dist: Path) -> list[dict[str, Any]]:
    files = sorted([*dist.glob("*.whl"), dist / SBOM])
    return [{"name": file.name, "digest": {"sha256": _sha256(file)}} for file in files]


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _encoded(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: the kind is signed, too."""
    return b"DSSEv1 %d %s %d %s" % (len(KIND), KIND.encode(), len(payload), payload)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], check=False, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
