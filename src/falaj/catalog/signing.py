"""Signed models, as OpenSSF Model Signing 1.0 lays them down: what we sign its own tool verifies, and the other way.

A signature is a Sigstore bundle: a DSSE envelope around an in-toto statement that names every file with its SHA-256.
The key is the tenant's in the zone (`Keyring.model_signer`). Its public half travels with the version, and the ledger's
record of the version is what makes it trusted: a bundle says which key made it, not whether to believe that key.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from falaj.catalog.limits import MOST_FILES
from falaj.core.errors import Corrupt, Invalid
from falaj.govern.keys import Keyring

if TYPE_CHECKING:
    # Every command about versions loads this module, and few sign or check a signature.
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

MOST_BYTES = 32 << 20
"""Of a bundle: MOST_FILES with long names fit."""
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
_HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
_AGAIN = "do not load it: check it out again, or publish it anew"


class _Signature(msgspec.Struct):
    sig: str
    keyid: str = ""


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: tuple[_Signature, ...]


class _Bundle(msgspec.Struct, rename="camel"):
    """Fields as the standards spell them; what a standard adds later is let pass."""

    media_type: str
    verification_material: dict[str, Any]
    dsse_envelope: _Envelope


class _Subject(msgspec.Struct):
    name: str
    digest: dict[str, str]


class _Resource(msgspec.Struct):
    name: str
    algorithm: str
    digest: str


class _Predicate(msgspec.Struct):
    serialization: dict[str, Any]
    resources: tuple[_Resource, ...]


class _Statement(msgspec.Struct, rename="camel"):
    subject: tuple[_Subject, ...]
    predicate_type: str
    predicate: _Predicate
    type: str = msgspec.field(name="_type")


def sign_model(keyring: Keyring, tenant: str, zone: str, name: str, files: Mapping[str, str]) -> tuple[str, str]:
    """The bundle over every file (path to SHA-256, in hex) as JSON, and the public key that verifies it as PEM."""
    _check_files(files)
    resources = tuple(
        _Resource(path, "sha256", files[path]) for path in sorted(files, key=lambda one: PurePosixPath(one).parts)
    )
    statement = _Statement(
        type=STATEMENT_TYPE,
        subject=(_Subject(name, {"sha256": _over(resources)}),),
        predicate_type=PREDICATE_TYPE,
        predicate=_Predicate({"method": "files", "hash_type": "sha256", "allow_symlinks": False}, resources),
    )
    payload = msgspec.json.encode(statement)
    key = keyring.model_signer(tenant, zone)
    pem = _pem(key.public_key())
    signature = key.sign(_encoded(payload), _ecdsa("SHA256"))
    envelope = _Envelope(_b64(payload), PAYLOAD_TYPE, (_Signature(_b64(signature)),))
    material = {"publicKey": {"hint": key_hint(pem)}, "tlogEntries": []}
    return msgspec.json.encode(_Bundle(MEDIA_TYPE, material, envelope)).decode(), pem


def verify(bundle: str, public_key: str, files: Mapping[str, str], name: str = "") -> None:
    """Corrupt, with the file named, unless `files` are exactly those that this key signed.

    `name` is checked where given: a true signature of another version is refused too.
    """
    statement = _opened(bundle, key_in(public_key))
    subject, predicate = statement.subject[0], statement.predicate
    if name and subject.name != name:
        raise Corrupt(f"the signature is of {subject.name!r:.200} and not of {name}", _AGAIN)
    if predicate.serialization.get("method") != "files" or {one.algorithm for one in predicate.resources} - {"sha256"}:
        raise Invalid("the signature does not name whole files by SHA-256", "sign with the defaults of model_signing")
    if subject.digest.get("sha256") != _over(predicate.resources):
        raise Corrupt("the signature contradicts itself", _AGAIN)
    signed = {str(PurePosixPath(one.name)): one.digest for one in predicate.resources}
    if len(signed) != len(predicate.resources):
        raise Corrupt("the signature names a file twice", _AGAIN)
    for path in sorted(signed.keys() | files.keys()):
        if signed.get(path) != files.get(path):
            how = "missing" if path not in files else "changed" if path in signed else "extra, nobody signed it"
            raise Corrupt(f"{path!r:.300} is not as it was signed: {how}", _AGAIN)


def key_hint(public_key: str) -> str:
    """How a bundle names the key that made it: the SHA-256 of its PEM."""
    return hashlib.sha256(public_key.encode()).hexdigest()


def _check_files(files: Mapping[str, str]) -> None:
    if not 0 < len(files) <= MOST_FILES:
        raise Invalid(
            f"a model of {len(files)} files cannot be signed", f"1 to {MOST_FILES}: pack small files together"
        )
    for path, digest in files.items():
        parts = path.split("/")
        if "\0" in path or any(part in ("", ".", "..") for part in parts) or not _encodes(path):
            raise Invalid(f"{path!r:.300} cannot name a file of a model", "a relative path in UTF-8, without . and ..")
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise Invalid(f"{path!r:.300} has no SHA-256", "64 hex digits, small letters")


def _encodes(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _opened(bundle: str, key: "EllipticCurvePublicKey") -> _Statement:
    """The statement inside, once its signature is proved; nothing of it is looked at before that."""
    if len(bundle) > MOST_BYTES:
        raise Corrupt("a signature of this size is none", _AGAIN)
    try:
        told = msgspec.json.decode(bundle, type=_Bundle)
        envelope, public = told.dsse_envelope, told.verification_material.get("publicKey", {})
        payload = base64.b64decode(envelope.payload, validate=True)
        signatures = [base64.b64decode(one.sig, validate=True) for one in envelope.signatures]
    except (msgspec.MsgspecError, binascii.Error, UnicodeError, ValueError, RecursionError) as error:
        raise Corrupt("the signature cannot be read", _AGAIN) from error
    if told.media_type != MEDIA_TYPE or envelope.payload_type != PAYLOAD_TYPE or len(signatures) != 1:
        raise Corrupt("this is not the signature of a model", _AGAIN)
    if public != {"hint": key_hint(_pem(key))}:
        raise Corrupt("the signature was made by another key", _AGAIN)
    try:
        key.verify(signatures[0], _encoded(payload), _ecdsa(_HASHES[key.curve.name]))
        statement = msgspec.json.decode(payload, type=_Statement)
    except InvalidSignature as error:
        raise Corrupt("the signature is not that of this key over this model", _AGAIN) from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Corrupt("what was signed cannot be read", _AGAIN) from error
    kinds = (statement.type, statement.predicate_type, len(statement.subject))
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE, 1):
        raise Corrupt("what was signed is not a model", _AGAIN)
    return statement


def _ecdsa(name: str) -> Any:
    """How keys on a curve sign, with this hash."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(getattr(hashes, name)())


def key_in(pem: str) -> "EllipticCurvePublicKey":
    """A key that signs models; Corrupt when it is none."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnicodeError, UnsupportedAlgorithm) as error:
        raise Corrupt("the public key cannot be read", _AGAIN) from error
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in _HASHES:
        raise Corrupt("the public key is not one that signs models", _AGAIN)
    return key


def _pem(key: "EllipticCurvePublicKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _over(resources: tuple[_Resource, ...]) -> str:
    """The digest over all digests, in the order they are named."""
    try:
        return hashlib.sha256(b"".join(bytes.fromhex(one.digest) for one in resources)).hexdigest()
    except ValueError as error:
        raise Corrupt("a digest in the signature is none", _AGAIN) from error


def _encoded(payload: bytes) -> bytes:
    """What DSSE signs: the type and the payload, each with its length before it."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
