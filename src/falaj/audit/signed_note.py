"""Signed notes as C2SP writes them: the checkpoint's text, its signatures, and witnesses' cosignatures.

A checkpoint's text is seven lines. The first three are a C2SP tlog-checkpoint, so that any witness of that family can
read it; the rest say when, which one, what came before and which key signs. Because the key is in the text, a change of
key must be signed by the old key too, and nobody can hang a strange key on an old signature.
"""

import base64
import binascii
import hashlib
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from falaj.audit.records import SignedCheckpoint
from falaj.core.errors import CorruptData, Invalid

TYPE_SIGNATURE, TYPE_COSIGNATURE = 1, 4
"""C2SP signature types: Ed25519 over the text, and a timestamped Ed25519 cosignature."""
_CHECKPOINT_LINES = 7
_ORIGIN_PART_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,128}")
_WITNESS_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def build_origin(installation: str, tenant: str, zone: str) -> str:
    """The name of one log in the whole world."""
    if not all(_ORIGIN_PART_PATTERN.fullmatch(part) for part in (installation, tenant, zone)):
        raise Invalid("an installation, tenant or zone has a name that no log can carry", "letters, digits, ., _ and -")
    return f"falaj/{installation}/{tenant}/{zone}"


def build_checkpoint_text(
    origin: str, number: int, size: int, root: bytes, signed_at: float, previous: str, public: bytes
) -> str:
    """What a checkpoint says."""
    time = round(signed_at * 1_000_000)
    return (
        f"{origin}\n{size}\n{encode_base64(root)}\ntime {time}\nnumber "
        f"{number}\nprevious {previous or '-'}\nkey {encode_base64(public)}\n"
    )


def sign_text(text: str, name: str, signer: Ed25519PrivateKey) -> str:
    """A signature line over the text."""
    return _format_signature_line(name, get_public_bytes(signer), TYPE_SIGNATURE, signer.sign(text.encode()))


def cosign_text(text: str, name: str, signer: Ed25519PrivateKey, seen_at: float) -> str:
    """A witness's line: it saw this checkpoint at this time and knows of no other."""
    timestamp = int(seen_at)
    return _format_signature_line(
        name,
        get_public_bytes(signer),
        TYPE_COSIGNATURE,
        timestamp.to_bytes(8, "big") + signer.sign(_build_cosigned_bytes(text, timestamp)),
    )


def verify_signature_line(text: str, line: str, name: str, public: bytes) -> bool:
    """True when the line is this key's signature or cosignature of the text."""
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != "\u2014" or parts[1] != name:
        return False
    try:
        signature_bytes = decode_base64(parts[2])
        key = Ed25519PublicKey.from_public_bytes(public)
        if signature_bytes[:4] == compute_key_hash(name, public, TYPE_SIGNATURE):
            key.verify(signature_bytes[4:], text.encode())
        elif signature_bytes[:4] == compute_key_hash(name, public, TYPE_COSIGNATURE) and len(signature_bytes) == 76:
            key.verify(signature_bytes[12:], _build_cosigned_bytes(text, int.from_bytes(signature_bytes[4:12], "big")))
        else:
            return False
    except (InvalidSignature, CorruptData, ValueError):
        return False
    return True


def join_note(text: str, *lines: str) -> str:
    """A note: text, blank line, signatures."""
    return text + "\n" + "".join(line + "\n" for line in lines)


def split_note(note: str) -> tuple[str, list[str]]:
    """The text and the signature lines of a note."""
    text, blank, signatures = note.partition("\n\n")
    if not blank or not signatures.endswith("\n"):
        raise Invalid("this is not a signed note", "text, an empty line, then signatures, each line ended")
    return text + "\n", signatures[:-1].split("\n")


def parse_checkpoint(note: str) -> SignedCheckpoint:
    """Read a checkpoint out of its note; signatures are not checked here."""
    text, _ = split_note(note)
    lines = text[:-1].split("\n")
    try:
        origin, size, root, time, number, previous, key = lines
        fields = [
            value.removeprefix(f"{field_name} ")
            for field_name, value in (("time", time), ("number", number), ("previous", previous), ("key", key))
        ]
        signed_at, checkpoint_number = int(fields[0]) / 1_000_000, int(fields[1])
        checkpoint = SignedCheckpoint(
            origin,
            checkpoint_number,
            int(size),
            root,
            signed_at,
            "" if fields[2] == "-" else fields[2],
            fields[3],
            note,
        )
        rebuilt_text = build_checkpoint_text(
            origin,
            checkpoint_number,
            checkpoint.size,
            decode_base64(root),
            int(fields[0]) / 1_000_000,
            checkpoint.previous,
            decode_base64(checkpoint.key),
        )
    except (ValueError, CorruptData) as error:
        raise Invalid(
            "this note is not a checkpoint", f"a checkpoint has {_CHECKPOINT_LINES} lines, as docs/audit.md shows"
        ) from error
    if rebuilt_text != text:
        raise Invalid("this checkpoint is not written as the log writes them", "give it unchanged")
    return checkpoint


def is_witness_name(name: str) -> bool:
    """True for what a witness may be called: never what a log is called."""
    return _WITNESS_NAME_PATTERN.fullmatch(name) is not None


def digest_note(note: str) -> str:
    """What the next checkpoint quotes: SHA-256 over the text without signatures, so that cosigning changes nothing."""
    return encode_base64(hashlib.sha256(split_note(note)[0].encode()).digest())


def compute_key_hash(name: str, public: bytes, signature_type: int) -> bytes:
    """The four bytes by which C2SP notes name a key."""
    return hashlib.sha256(name.encode() + b"\n" + bytes([signature_type]) + public).digest()[:4]


def get_public_bytes(signer: Ed25519PrivateKey) -> bytes:
    """The 32 bytes of the public key."""
    return signer.public_key().public_bytes_raw()


def encode_base64(data: bytes) -> str:
    """Standard base64."""
    return base64.b64encode(data).decode()


def decode_base64(text: str) -> bytes:
    """The one reading of canonical base64; anything else is Corrupt."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptData("this is not base64", "give it unchanged") from error
    if encode_base64(data) != text:
        raise CorruptData("this is not canonical base64", "give it unchanged")
    return data


def _format_signature_line(name: str, public: bytes, signature_type: int, signature: bytes) -> str:
    return f"\u2014 {name} {encode_base64(compute_key_hash(name, public, signature_type) + signature)}"


def _build_cosigned_bytes(text: str, timestamp: int) -> bytes:
    return f"cosignature/v1\ntime {timestamp}\n{text}".encode()
