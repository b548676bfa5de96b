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

from falaj.catalog.publish_limits import MAX_SIGNED_FILES
from falaj.core.errors import CorruptData, Invalid
from falaj.govern.keyring import Keyring

if TYPE_CHECKING:
    # Every command about versions loads this module, and few sign or check a signature.
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

MAX_BUNDLE_BYTES = 32 << 20
"""Of a bundle: MOST_FILES with long names fit."""
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
_HASH_BY_CURVE = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
_DO_NOT_LOAD_HINT = "do not load it: check it out again, or publish it anew"


class _DsseSignature(msgspec.Struct):
    sig: str
    keyid: str = ""


class _DsseEnvelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: tuple[_DsseSignature, ...]


class _SigstoreBundle(msgspec.Struct, rename="camel"):
    """Fields as the standards spell them; what a standard adds later is let pass."""

    media_type: str
    verification_material: dict[str, Any]
    dsse_envelope: _DsseEnvelope


class _StatementSubject(msgspec.Struct):
    name: str
    digest: dict[str, str]


class _SignedResource(msgspec.Struct):
    name: str
    algorithm: str
    digest: str


class _StatementPredicate(msgspec.Struct):
    serialization: dict[str, Any]
    resources: tuple[_SignedResource, ...]


class _SigningStatement(msgspec.Struct, rename="camel"):
    subject: tuple[_StatementSubject, ...]
    predicate_type: str
    predicate: _StatementPredicate
    type: str = msgspec.field(name="_type")


def sign_model(keyring: Keyring, tenant: str, zone: str, name: str, files: Mapping[str, str]) -> tuple[str, str]:
    """The bundle over every file (path to SHA-256, in hex) as JSON, and the public key that verifies it as PEM."""
    _require_signable_files(files)
    resources = tuple(
        _SignedResource(path, "sha256", files[path])
        for path in sorted(files, key=lambda file_path: PurePosixPath(file_path).parts)
    )
    statement = _SigningStatement(
        type=STATEMENT_TYPE,
        subject=(_StatementSubject(name, {"sha256": _hash_resources(resources)}),),
        predicate_type=PREDICATE_TYPE,
        predicate=_StatementPredicate({"method": "files", "hash_type": "sha256", "allow_symlinks": False}, resources),
    )
    payload = msgspec.json.encode(statement)
    key = keyring.model_signer(tenant, zone)
    pem = _to_pem(key.public_key())
    signature = key.sign(_encode_dsse(payload), _create_ecdsa("SHA256"))
    envelope = _DsseEnvelope(_encode_base64(payload), PAYLOAD_TYPE, (_DsseSignature(_encode_base64(signature)),))
    material = {"publicKey": {"hint": compute_key_hint(pem)}, "tlogEntries": []}
    return msgspec.json.encode(_SigstoreBundle(MEDIA_TYPE, material, envelope)).decode(), pem


def verify_signature(bundle: str, public_key: str, files: Mapping[str, str], name: str = "") -> None:
    """Corrupt, with the file named, unless `files` are exactly those that this key signed.

    `name` is checked where given: a true signature of another version is refused too.
    """
    statement = _open_bundle(bundle, load_signing_key(public_key))
    subject, predicate = statement.subject[0], statement.predicate
    if name and subject.name != name:
        raise CorruptData(f"the signature is of {subject.name!r:.200} and not of {name}", _DO_NOT_LOAD_HINT)
    if predicate.serialization.get("method") != "files" or {
        signed_resource.algorithm for signed_resource in predicate.resources
    } - {"sha256"}:
        raise Invalid("the signature does not name whole files by SHA-256", "sign with the defaults of model_signing")
    if subject.digest.get("sha256") != _hash_resources(predicate.resources):
        raise CorruptData("the signature contradicts itself", _DO_NOT_LOAD_HINT)
    signed_digests = {
        str(PurePosixPath(signed_resource.name)): signed_resource.digest for signed_resource in predicate.resources
    }
    if len(signed_digests) != len(predicate.resources):
        raise CorruptData("the signature names a file twice", _DO_NOT_LOAD_HINT)
    for path in sorted(signed_digests.keys() | files.keys()):
        if signed_digests.get(path) != files.get(path):
            problem = (
                "missing" if path not in files else "changed" if path in signed_digests else "extra, nobody signed it"
            )
            raise CorruptData(f"{path!r:.300} is not as it was signed: {problem}", _DO_NOT_LOAD_HINT)


def compute_key_hint(public_key: str) -> str:
    """How a bundle names the key that made it: the SHA-256 of its PEM."""
    return hashlib.sha256(public_key.encode()).hexdigest()


def _require_signable_files(files: Mapping[str, str]) -> None:
    if not 0 < len(files) <= MAX_SIGNED_FILES:
        raise Invalid(
            f"a model of {len(files)} files cannot be signed", f"1 to {MAX_SIGNED_FILES}: pack small files together"
        )
    for path, digest in files.items():
        parts = path.split("/")
        if "\0" in path or any(part in ("", ".", "..") for part in parts) or not _is_utf8_encodable(path):
            raise Invalid(f"{path!r:.300} cannot name a file of a model", "a relative path in UTF-8, without . and ..")
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise Invalid(f"{path!r:.300} has no SHA-256", "64 hex digits, small letters")


def _is_utf8_encodable(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _open_bundle(bundle: str, key: "EllipticCurvePublicKey") -> _SigningStatement:
    """The statement inside, once its signature is proved; nothing of it is looked at before that."""
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise CorruptData("a signature of this size is none", _DO_NOT_LOAD_HINT)
    try:
        bundle_fields = msgspec.json.decode(bundle, type=_SigstoreBundle)
        envelope, public_key_fields = (
            bundle_fields.dsse_envelope,
            bundle_fields.verification_material.get("publicKey", {}),
        )
        payload = base64.b64decode(envelope.payload, validate=True)
        signatures = [base64.b64decode(dsse_signature.sig, validate=True) for dsse_signature in envelope.signatures]
    except (msgspec.MsgspecError, binascii.Error, UnicodeError, ValueError, RecursionError) as error:
        raise CorruptData("the signature cannot be read", _DO_NOT_LOAD_HINT) from error
    if bundle_fields.media_type != MEDIA_TYPE or envelope.payload_type != PAYLOAD_TYPE or len(signatures) != 1:
        raise CorruptData("this is not the signature of a model", _DO_NOT_LOAD_HINT)
    if public_key_fields != {"hint": compute_key_hint(_to_pem(key))}:
        raise CorruptData("the signature was made by another key", _DO_NOT_LOAD_HINT)
    try:
        key.verify(signatures[0], _encode_dsse(payload), _create_ecdsa(_HASH_BY_CURVE[key.curve.name]))
        statement = msgspec.json.decode(payload, type=_SigningStatement)
    except InvalidSignature as error:
        raise CorruptData("the signature is not that of this key over this model", _DO_NOT_LOAD_HINT) from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CorruptData("what was signed cannot be read", _DO_NOT_LOAD_HINT) from error
    statement_types = (statement.type, statement.predicate_type, len(statement.subject))
    if statement_types != (STATEMENT_TYPE, PREDICATE_TYPE, 1):
        raise CorruptData("what was signed is not a model", _DO_NOT_LOAD_HINT)
    return statement


def _create_ecdsa(name: str) -> Any:
    """How keys on a curve sign, with this hash."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(getattr(hashes, name)())


def load_signing_key(pem: str) -> "EllipticCurvePublicKey":
    """A key that signs models; Corrupt when it is none."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnicodeError, UnsupportedAlgorithm) as error:
        raise CorruptData("the public key cannot be read", _DO_NOT_LOAD_HINT) from error
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in _HASH_BY_CURVE:
        raise CorruptData("the public key is not one that signs models", _DO_NOT_LOAD_HINT)
    return key


def _to_pem(key: "EllipticCurvePublicKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _hash_resources(resources: tuple[_SignedResource, ...]) -> str:
    """The digest over all digests, in the order they are named."""
    try:
        return hashlib.sha256(
            b"".join(bytes.fromhex(signed_resource.digest) for signed_resource in resources)
        ).hexdigest()
    except ValueError as error:
        raise CorruptData("a digest in the signature is none", _DO_NOT_LOAD_HINT) from error


def _encode_dsse(payload: bytes) -> bytes:
    """What DSSE signs: the type and the payload, each with its length before it."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
