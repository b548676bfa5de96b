"""Certificates and answers checked by the one-file verifier, with nothing but a bare Python."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from falaj.audit import signed_note
from tests.audit.house import VERIFIER
from tests.privacy.erasures import erase_approved
from tests.town import Town

WHO = "784-1990-1234567-1"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    bank = Town(tmp_path_factory.mktemp("offline") / "house")
    words = {"ar": "كشف الاحتيال", "en": "to find fraud"}
    bank.as_("dana").privacy.add_purpose("fraud", "consent", ("AE-PDPL",), words, 365)
    yield bank
    bank.close()


@pytest.fixture(scope="module")
def answer(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers") / "answer"
    salem = town.as_("salem")
    salem.privacy.access(salem.privacy.ask("access", WHO, regimes=("AE-PDPL",)).ref, WHO, str(folder))
    return folder


@pytest.fixture(scope="module")
def certificate(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates") / "erased"
    request = town.as_("salem").privacy.ask("erasure", WHO, regimes=("AE-PDPL",)).ref
    erase_approved(town, request, WHO, out=str(folder))
    return folder / "certificate.json"


@pytest.fixture(scope="module")
def key(certificate: Path) -> str:
    """The log's public key, as an auditor was given it."""
    text: str = json.loads(certificate.read_text())["key"]
    return text


def run_verifier(*arguments: object, locale: str = "en_US.UTF-8") -> tuple[int, str]:
    """Run it without site-packages: what it needs beside Python would be missing here."""
    environment = {"PATH": "/usr/bin", "LC_ALL": locale, "PYTHONUTF8": "1"}
    command = [sys.executable, "-I", "-S", "-X", "utf8", str(VERIFIER), *map(str, arguments), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_genuine_certificate_is_intact(certificate: Path, key: str) -> None:
    code, text = run_verifier(certificate, "--key", key)
    assert (code, text.startswith("OK: ") and "certificate" in text) == (0, True), text
    assert run_verifier(certificate.parent, "--key", key)[0] == 0, "also by its folder"
    code, text = run_verifier(certificate.parent / "proof.json", "--key", key)
    assert (code, text.startswith("OK: one event, proven by the log ")) == (0, True), text
    code, text = run_verifier(certificate, "--lang", "ar", "--key", key)
    assert code == 0
    assert text.startswith("سليم: شهادة")


@pytest.mark.parametrize("name", ["certificate", "proof", "answer"])
def test_without_a_trusted_key_authenticity_is_unproven(certificate: Path, answer: Path, name: str) -> None:
    path = {"certificate": certificate, "proof": certificate.parent / "proof.json", "answer": answer}[name]
    code, text = run_verifier(path)
    assert (code, "OK" in text) == (2, False), text
    assert text.startswith("AUTHENTICITY UNPROVEN: ")
    assert "--key" in text
    code, text = run_verifier(path, "--lang", "ar")
    assert code == 2
    assert text.startswith("الأصالة غير مثبتة")
    code, text = run_verifier(path, "--json")
    report = json.loads(text)
    assert (code, report["ok"], report["unproven"], report["problems"]) == (2, False, True, [])


def test_a_pack_of_the_log_shows_which_key_is_its_own(
    town: Town, certificate: Path, answer: Path, key: str, tmp_path: Path
) -> None:
    pack = tmp_path / "pack.zip"
    pack.write_bytes(town.as_("omar").audit.export().read())
    for path in (certificate, answer, certificate.parent / "proof.json"):
        code, text = run_verifier(path, "--log", pack)
        assert (code, text.startswith("OK: ")) == (0, True), text
        assert "compare it with one you were given" in text
        assert "compare" not in run_verifier(path, "--log", pack, "--key", key)[1]
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    code, text = run_verifier(answer, "--log", pack)
    assert (code, "the pack that --log names is damaged" in text) == (2, True), text


@pytest.mark.parametrize("field", ["statement", "digest", "signature", "key", "state", "proof"])
def test_a_certificate_that_was_changed_is_damaged(certificate: Path, tmp_path: Path, field: str) -> None:
    body = json.loads(certificate.read_text())
    changed = {
        "statement": body["statement"].replace('"closed"', '"closed "'), "digest": "sha256:" + "0" * 64,
        "signature": body["signature"][:8] + "AAAA" + body["signature"][12:], "key": "A" * 43 + "=",
        "state": "other", "proof": {**body["proof"], "index": body["proof"]["index"] + 1},
    }  # fmt: skip
    (tmp_path / "certificate.json").write_text(json.dumps({**body, field: changed[field]}))
    code, text = run_verifier(tmp_path / "certificate.json")
    assert code == 1, text
    assert text.startswith("DAMAGED: ")
    assert run_verifier(tmp_path / "certificate.json", "--lang", "ar")[1].startswith("تالف: ")


def test_a_certificate_with_another_proof_is_damaged(town: Town, certificate: Path, tmp_path: Path) -> None:
    body = json.loads(certificate.read_text())
    proof = town.as_("omar").audit.prove(town.events()[0].id)
    other = json.loads(json.dumps({name: getattr(proof, name) for name in proof.__slots__}, default=str))
    (tmp_path / "certificate.json").write_text(json.dumps({**body, "proof": other}))
    code, text = run_verifier(tmp_path / "certificate.json")
    assert code == 1, text


def test_a_genuine_answer_is_intact_and_a_changed_file_is_named(answer: Path, key: str, tmp_path: Path) -> None:
    code, text = run_verifier(answer, "--key", key)
    assert (code, text.startswith("OK: answer, ") and "proven by the log" in text) == (0, True), text
    signature, proof = (json.loads((answer / f"{name}.json").read_text()) for name in ("signature", "proof"))
    assert json.loads(proof["event"])["id"] == signature["event"]
    copied = Path(shutil.copytree(answer, tmp_path / "copy"))
    data = bytearray((copied / "answer.json").read_bytes())
    data[len(data) // 2] ^= 1
    (copied / "answer.json").write_bytes(data)
    code, text = run_verifier(copied)
    assert code == 1
    assert "file answer.json: the file is not the one in the manifest" in text
    (copied / "extra.txt").write_text("somebody else's")
    assert "file extra.txt: the file is not in the manifest" in run_verifier(copied)[1]
    for name in ("signature.json", "proof.json"):
        (copied / name).unlink()
        assert f"file {name}: the file is missing" in run_verifier(copied, "--key", key)[1]


def sign_again(answer: Path, folder: Path, signer: Ed25519PrivateKey) -> Path:
    """A forger's copy of an answer: another letter, and a manifest that fits it, signed with a key of their own."""
    forged = Path(shutil.copytree(answer, folder))
    letter = forged / "answer.en.html"
    letter.write_text(letter.read_text().replace("Complete:", "Complete :"))
    manifest = json.loads((forged / "manifest.json").read_text())
    manifest["files"]["answer.en.html"] = f"sha256:{hashlib.sha256(letter.read_bytes()).hexdigest()}"
    (forged / "manifest.json").write_text(json.dumps(manifest))
    digest = f"sha256:{hashlib.sha256((forged / 'manifest.json').read_bytes()).hexdigest()}"
    signature = {
        "digest": digest,
        "signature": signed_note.encode_base64(signer.sign(digest.encode())),
        "key": signed_note.encode_base64(signed_note.get_public_bytes(signer)),
    }
    (forged / "signature.json").write_text(json.dumps(signature))
    return forged


def test_an_answer_that_a_stranger_signed_again_is_refused(answer: Path, key: str, tmp_path: Path) -> None:
    forged = sign_again(answer, tmp_path / "forged", Ed25519PrivateKey.generate())
    for options in ((), ("--key", key)):
        code, text = run_verifier(forged, *options)
        assert (code, text.startswith("DAMAGED: ")) == (1, True), text
        assert "file proof.json: the proven event is about something else than this manifest" in text
        assert "file signature.json: the statement is" in text
    (forged / "proof.json").unlink()
    assert run_verifier(forged)[0] == 1, "an answer without its proof is none"


def test_an_answer_out_of_a_strangers_log_is_refused_by_the_logs_key(
    answer: Path, key: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The strongest forger makes a log of their own with a true proof: only a trusted key or log tells them apart."""
    other = Town(tmp_path_factory.mktemp("stranger") / "house")
    try:
        salem = other.as_("salem")
        salem.privacy.access(salem.privacy.ask("access", WHO, regimes=("AE-PDPL",)).ref, WHO, str(tmp_path / "forged"))
        pack = tmp_path / "theirs.zip"
        pack.write_bytes(other.as_("omar").audit.export().read())
    finally:
        other.close()
    assert run_verifier(tmp_path / "forged")[0] == 2
    code, text = run_verifier(tmp_path / "forged", "--key", key)
    assert (code, "the checkpoint is not signed by the log's key" in text) == (1, True), text
    assert run_verifier(answer, "--log", pack)[0] == 1


def test_an_answer_signed_by_another_key_is_damaged(answer: Path, certificate: Path) -> None:
    stranger = "O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik="
    assert run_verifier(answer, "--key", stranger)[0] == 1
    assert run_verifier(certificate, "--key", stranger)[0] == 1


def test_help_is_in_the_language_that_is_asked_for() -> None:
    code, english = run_verifier("--help")
    assert (code, "usage: falaj_verify.py" in english, "الخيارات" in english) == (0, True, False)
    for command in (("--lang", "ar", "--help"), ("--help", "--lang=ar")):
        code, arabic = run_verifier(*command)
        assert (code, "الاستخدام: falaj_verify.py" in arabic, "options" in arabic) == (0, True, False), arabic
    left = re.sub(r"--?[a-z]+|\{en,ar\}|[A-Z_:]{3,}|Python|falaj_verify\.py", " ", arabic)
    assert re.findall(r"[A-Za-z]+", left) == []
    by_locale = run_verifier("--help", locale="ar_AE.UTF-8")[1]
    assert by_locale == arabic
    assert run_verifier("--nonsense", "--lang", "ar")[1].startswith("تعذّر التحقق: تعذّرت قراءة أحد الخيارات")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{}", b'{"statement": 1}', b'{"statement": "x", "proof": []}', b"\xff\xfe", b"PK\x03\x04", b"[" * 99],
)
def test_what_cannot_be_read_gives_no_traceback(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    assert run_verifier(tmp_path / "file")[0] in (1, 2)
    (tmp_path / "certificate.json").write_bytes(data)
    (tmp_path / "manifest.json").write_bytes(b'{"request": ' + data)
    assert run_verifier(tmp_path)[0] in (1, 2)
    assert run_verifier(tmp_path / "missing", "--lang", "ar") == (2, "تعذّر التحقق: لا يوجد ملف أو مجلد بهذا الاسم\n")
