"""Signed models: the OpenSSF tool and we verify each other's; any other file, key or bundle is refused."""

import base64
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.catalog import model_signing
from falaj.core.errors import CorruptData, FalajError, Invalid
from tests.govern.keyhouse import House
from tests.servers import peers
from tests.servers.process import Missing

FILES = {
    "weights.safetensors": b"\x01" * 300,
    "config.json": b"{}",
    "sub dir/نموذج.txt": b"deep",
    "sub-dir": b"sorts between, by parts and by text differently",
}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


def hashed(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}


def write(folder: Path, files: Mapping[str, bytes] = FILES) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def signed(house: House, files: Mapping[str, bytes] = FILES) -> tuple[str, str]:
    return model_signing.sign_model(house.ring, "acme", "uae", "model:fraud/scorer@v1", hashed(files))


def tool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    try:
        program = peers.peer("model-signing", *peers.MODEL_SIGNING) / "model_signing"
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=120)


def test_the_real_tool_verifies_ours(house: House, tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    bundle, pem = signed(house)
    (tmp_path / "sig.json").write_text(bundle)
    (tmp_path / "key.pem").write_text(pem)
    told = ("verify", "key", "--public_key", tmp_path / "key.pem", "--signature", tmp_path / "sig.json", folder)
    done = tool(*told)
    assert done.returncode == 0, done.stderr
    (folder / "extra.py").write_text("import os")
    done = tool(*told)
    assert done.returncode, "an extra file went unnoticed"
    assert "extra.py" in done.stdout + done.stderr


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1()])
def test_we_verify_the_real_tools(tmp_path: Path, curve: ec.EllipticCurve) -> None:
    folder = write(tmp_path / "model")
    key = ec.generate_private_key(curve)
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    done = tool("sign", "key", "--private_key", tmp_path / "key.pem", "--signature", tmp_path / "sig.json", folder)
    assert done.returncode == 0, done.stderr
    bundle, pem = (tmp_path / "sig.json").read_text(), public(key)
    model_signing.verify_signature(bundle, pem, hashed(FILES))
    with pytest.raises(CorruptData, match=r"config\.json.*changed"):
        model_signing.verify_signature(bundle, pem, hashed({**FILES, "config.json": b"{} "}))
    # the tool leaves git's own files out by itself: to us what nobody signed is an extra file
    with pytest.raises(CorruptData, match=r"\.gitattributes.*extra"):
        model_signing.verify_signature(bundle, pem, hashed({**FILES, ".gitattributes": b"*"}))


def test_our_statement_is_the_tools_own(house: House, tmp_path: Path) -> None:
    """The same order, the same root digest: both sign the very same claim about the same files."""
    folder = write(tmp_path / "scorer")
    key = house.ring.model_signer("acme", "uae")
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    tool("sign", "key", "--private_key", tmp_path / "key.pem", "--signature", tmp_path / "sig.json", folder)
    ours, theirs = json.loads(signed(house)[0]), json.loads((tmp_path / "sig.json").read_text())
    assert ours["verificationMaterial"] == theirs["verificationMaterial"]
    mine, other = statement(ours), statement(theirs)
    assert mine["subject"][0]["digest"] == other["subject"][0]["digest"]
    assert mine["predicate"]["resources"] == other["predicate"]["resources"]
    assert mine["predicateType"] == other["predicateType"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({**FILES, "config.json": b"{ }"}, r"config\.json.*changed"),
        ({path: data for path, data in FILES.items() if path != "sub-dir"}, "sub-dir.*missing"),
        ({**FILES, "run.py": b""}, r"run\.py.*extra"),
        ({}, "missing"),
    ],
)
def test_a_file_that_is_not_as_signed_is_named(house: House, files: dict[str, bytes], said: str) -> None:
    bundle, pem = signed(house)
    model_signing.verify_signature(bundle, pem, hashed(FILES), "model:fraud/scorer@v1")
    with pytest.raises(CorruptData, match=said):
        model_signing.verify_signature(bundle, pem, hashed(files))


def test_a_true_signature_of_another_version_is_refused(house: House) -> None:
    bundle, pem = signed(house)
    with pytest.raises(CorruptData, match="not of model:fraud/scorer@v2"):
        model_signing.verify_signature(bundle, pem, hashed(FILES), "model:fraud/scorer@v2")


def test_another_key_verifies_nothing(house: House) -> None:
    bundle, _ = signed(house)
    other = public(ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(CorruptData, match="another key"):
        model_signing.verify_signature(bundle, other, hashed(FILES))
    told = json.loads(bundle)
    told["verificationMaterial"]["publicKey"]["hint"] = model_signing.compute_key_hint(other)
    with pytest.raises(CorruptData, match="not that of this key"):
        model_signing.verify_signature(json.dumps(told), other, hashed(FILES))
    strange = ed25519.Ed25519PrivateKey.generate().public_key()
    for pem in ("", "nonsense", strange.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()):
        with pytest.raises(CorruptData, match="public key"):
            model_signing.verify_signature(bundle, pem, hashed(FILES))


def test_an_altered_claim_is_refused(house: House) -> None:
    bundle, pem = signed(house)
    told = json.loads(bundle)
    claim = statement(told)
    claim["predicate"]["resources"] = claim["predicate"]["resources"][:1]
    told["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(claim).encode()).decode()
    with pytest.raises(CorruptData, match="not that of this key"):
        model_signing.verify_signature(json.dumps(told), pem, hashed(FILES))


def test_a_signed_claim_that_contradicts_itself_is_refused(house: House) -> None:
    key = house.ring.model_signer("acme", "uae")
    for change, said in (
        (lambda claim: claim["predicate"]["resources"].pop(), "contradicts"),
        (lambda claim: claim["predicate"]["resources"][0].update(digest="zz"), "digest"),
        (lambda claim: claim["predicate"]["serialization"].update(method="shards"), "whole files"),
        (lambda claim: claim.update(predicateType="https://slsa.dev/provenance/v1"), "not a model"),
        (lambda claim: claim["subject"].append(claim["subject"][0]), "not a model"),
        (lambda claim: claim.pop("predicate"), "cannot be read"),
    ):
        told = json.loads(signed(house)[0])
        claim = statement(told)
        change(claim)
        payload = json.dumps(claim).encode()
        kind = told["dsseEnvelope"]["payloadType"]
        pae = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
        told["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
        sig = key.sign(pae, ec.ECDSA(hashes.SHA256()))
        told["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(sig).decode()
        with pytest.raises(FalajError, match=said):
            model_signing.verify_signature(json.dumps(told), public(key), hashed(FILES))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 5000), put=st.binary(max_size=4), cut=st.integers(0, 8))
def test_no_damage_passes_and_none_breaks_us(house: House, at: int, put: bytes, cut: int) -> None:
    bundle, pem = signed(house)
    at %= len(bundle)
    damaged = bundle[:at] + put.decode("latin-1") + bundle[at + cut :]
    try:
        model_signing.verify_signature(damaged, pem, hashed(FILES))
    except CorruptData:
        return
    # what passed says the same: only what nobody reads (white space, fields of later standards) may differ
    was, now = json.loads(bundle)["dsseEnvelope"], json.loads(damaged)["dsseEnvelope"]
    assert (was["payload"], was["signatures"][0]["sig"]) == (now["payload"], now["signatures"][0]["sig"])


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a/../b", "a//b", "./a", "a/", "nul\0", "bad\udc80"])
def test_names_that_are_no_files_of_a_model_are_not_signed(house: House, path: str) -> None:
    with pytest.raises(Invalid, match="cannot name"):
        model_signing.sign_model(house.ring, "acme", "uae", "m", {path: "0" * 64})


def test_what_cannot_be_signed_says_so(house: House) -> None:
    with pytest.raises(Invalid, match="SHA-256"):
        model_signing.sign_model(house.ring, "acme", "uae", "m", {"a": "b3:00"})
    with pytest.raises(Invalid, match="0 files"):
        model_signing.sign_model(house.ring, "acme", "uae", "m", {})
    many = {f"{i}": "0" * 64 for i in range(model_signing.MAX_SIGNED_FILES + 1)}
    with pytest.raises(Invalid, match="10001 files"):
        model_signing.sign_model(house.ring, "acme", "uae", "m", many)


def test_the_key_is_of_the_tenant_and_the_zone_and_outlives_a_restart(house: House) -> None:
    mine = public(house.ring.model_signer("acme", "uae"))
    again = House(house.home, start=house.time)
    assert public(again.ring.model_signer("acme", "uae")) == mine
    again.close()
    others = {public(house.ring.model_signer(*where)) for where in (("acme", "eu"), ("beta", "uae"))}
    assert len(others | {mine}) == 3


def test_what_was_signed_before_a_rotation_stays_signed(house: House) -> None:
    old = signed(house)
    house.rotations.begin(house.ctx(), "model", "acme", "uae")
    new = signed(house)
    assert old[1] != new[1]
    for bundle, pem in (old, new):
        model_signing.verify_signature(bundle, pem, hashed(FILES))
    with pytest.raises(CorruptData, match="another key"):
        model_signing.verify_signature(old[0], new[1], hashed(FILES))


def statement(bundle: dict[str, dict[str, str]]) -> dict[str, dict[str, list[dict[str, str]]]]:
    return json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))


def public(key: ec.EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
