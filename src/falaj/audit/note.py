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

from falaj.audit.records import Checkpoint
from falaj.core.errors import Corrupt, Invalid

SIGNED, COSIGNED = 1, 4
"""C2SP signature types: Ed25519 over the text, and a timestamped Ed25519 cosignature."""
_LINES = 7
_PART = re.compile(r"[A-Za-z0-9._-]{1,128}")
_WITNESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def origin_of(installation: str, tenant: str, zone: str) -> str:
    """The name of one log in the whole world."""
    if not all(_PART.fullmatch(part) for part in (installation, tenant, zone)):
        raise Invalid("an installation, tenant or zone has a name that no log can carry", "letters, digits, ., _ and -")
    return f"falaj/{installation}/{tenant}/{zone}"


def text_of(origin: str, number: int, size: int, root: bytes, at: float, previous: str, public: bytes) -> str:
    """What a checkpoint says."""
    time = round(at * 1_000_000)
    return (
        f"{origin}\n{size}\n{b64(root)}\ntime {time}\nnumber {number}\nprevious {previous or '-'}\nkey {b64(public)}\n"
    )


def sign(text: str, name: str, signer: Ed25519PrivateKey) -> str:
    """A signature line over the text."""
    return _line(name, public_of(signer), SIGNED, signer.sign(text.encode()))


def cosign(text: str, name: str, signer: Ed25519PrivateKey, at: float) -> str:
    """A witness's line: it saw this checkpoint at this time and knows of no other."""
    stamp = int(at)
    return _line(name, public_of(signer), COSIGNED, stamp.to_bytes(8, "big") + signer.sign(_cosigned(text, stamp)))


def check(text: str, line: str, name: str, public: bytes) -> bool:
    """True when the line is this key's signature or cosignature of the text."""
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != "\u2014" or parts[1] != name:
        return False
    try:
        raw = unb64(parts[2])
        key = Ed25519PublicKey.from_public_bytes(public)
        if raw[:4] == key_hash(name, public, SIGNED):
            key.verify(raw[4:], text.encode())
        elif raw[:4] == key_hash(name, public, COSIGNED) and len(raw) == 76:
            key.verify(raw[12:], _cosigned(text, int.from_bytes(raw[4:12], "big")))
        else:
            return False
    except (InvalidSignature, Corrupt, ValueError):
        return False
    return True


def join(text: str, *lines: str) -> str:
    """A note: text, blank line, signatures."""
    return text + "\n" + "".join(line + "\n" for line in lines)


def split(note: str) -> tuple[str, list[str]]:
    """The text and the signature lines of a note."""
    text, blank, signatures = note.partition("\n\n")
    if not blank or not signatures.endswith("\n"):
        raise Invalid("this is not a signed note", "text, an empty line, then signatures, each line ended")
    return text + "\n", signatures[:-1].split("\n")


def parse(note: str) -> Checkpoint:
    """Read a checkpoint out of its note; signatures are not checked here."""
    text, _ = split(note)
    lines = text[:-1].split("\n")
    try:
        origin, size, root, time, number, previous, key = lines
        fields = [
            value.removeprefix(f"{word} ")
            for word, value in (("time", time), ("number", number), ("previous", previous), ("key", key))
        ]
        at, count = int(fields[0]) / 1_000_000, int(fields[1])
        found = Checkpoint(origin, count, int(size), root, at, "" if fields[2] == "-" else fields[2], fields[3], note)
        same = text_of(
            origin, count, found.size, unb64(root), int(fields[0]) / 1_000_000, found.previous, unb64(found.key)
        )
    except (ValueError, Corrupt) as error:
        raise Invalid(
            "this note is not a checkpoint", f"a checkpoint has {_LINES} lines, as docs/audit.md shows"
        ) from error
    if same != text:
        raise Invalid("this checkpoint is not written as the log writes them", "give it unchanged")
    return found


def is_witness_name(name: str) -> bool:
    """True for what a witness may be called: never what a log is called."""
    return _WITNESS.fullmatch(name) is not None


def digest(note: str) -> str:
    """What the next checkpoint quotes: SHA-256 over the text without signatures, so that cosigning changes nothing."""
    return b64(hashlib.sha256(split(note)[0].encode()).digest())


def key_hash(name: str, public: bytes, kind: int) -> bytes:
    """The four bytes by which C2SP notes name a key."""
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


def public_of(signer: Ed25519PrivateKey) -> bytes:
    """The 32 bytes of the public key."""
    return signer.public_key().public_bytes_raw()


def b64(data: bytes) -> str:
    """Standard base64."""
    return base64.b64encode(data).decode()


def unb64(text: str) -> bytes:
    """The one reading of canonical base64; anything else is Corrupt."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Corrupt("this is not base64", "give it unchanged") from error
    if b64(data) != text:
        raise Corrupt("this is not canonical base64", "give it unchanged")
    return data


def _line(name: str, public: bytes, kind: int, signature: bytes) -> str:
    return f"\u2014 {name} {b64(key_hash(name, public, kind) + signature)}"


def _cosigned(text: str, stamp: int) -> bytes:
    return f"cosignature/v1\ntime {stamp}\n{text}".encode()
