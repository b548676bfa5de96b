"""Root keys inside a hardware security module: `pkcs11:<library>?token=<label>&pin=env:NAME`.

A root key is a non-extractable AES-256 key on the token. A version is an object labelled `falaj-<name>-v<n>`; wrapped
bytes name the object by its random CKA_ID, so two replicas that made the same version at once both stay right.
"""

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pkcs11
from pkcs11 import Attribute, GCMParams, KeyType, Mechanism, ObjectClass

from falaj.core.credential import credential
from falaj.core.errors import Corrupt, Invalid, NotFound, Unavailable

SUITE = 2
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_LABEL = re.compile(r"falaj-(.+)-v([1-9][0-9]{0,8})")
_GONE = (
    pkcs11.SessionHandleInvalid,
    pkcs11.SessionClosed,
    pkcs11.DeviceRemoved,
    pkcs11.TokenNotPresent,
    pkcs11.UserNotLoggedIn,
)


@dataclass(slots=True)
class _Door:
    """The login to one token: PKCS#11 knows one a process, and its sessions are not for two threads at once."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    session: Any = None
    users: int = 0


_DOORS: dict[tuple[str, str], _Door] = {}


class Pkcs11Secrets:
    """Secrets port over one token."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        parts = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self._library = unquote(parts.path)
        self._token = str(options.get("token", "")) or query.get("token", "")
        self._pin = str(options.get("pin", "")) or credential(query.get("pin", ""), "pin")
        if not self._library or not self._token:
            raise Invalid(
                "pkcs11: names no library or no token",
                "for example pkcs11:/usr/lib/softhsm/libsofthsm2.so?token=kms&pin=env:FALAJ_PIN",
            )
        self._door = _door(self._library, self._token)
        self._lock = self._door.lock
        with self._lock:
            self._door.users += 1
            self._opened()

    def wrap(self, name: str, key: bytes, context: bytes) -> bytes:
        """Seal `key` inside the token under the newest version of root key `name`, made on first use."""
        with self._lock:
            held = self._held(name)
            version, ident = max(held) if held else self._create(name, 1)
            nonce = os.urandom(12)
            params = GCMParams(nonce, _bound(name, version, context), 128)
            sealed = bytes(
                self._ask(
                    lambda: self._object(name, ident).encrypt(key, mechanism=Mechanism.AES_GCM, mechanism_param=params)
                )
            )
        return bytes([SUITE]) + version.to_bytes(4, "big") + ident + nonce + sealed

    def unwrap(self, name: str, wrapped: bytes, context: bytes) -> bytes:
        """The key that `wrap` was given, or Corrupt when anything at all differs."""
        version = self.version(wrapped)
        params = GCMParams(wrapped[21:33], _bound(name, version, context), 128)
        with self._lock:
            held = self._object(name, wrapped[5:21])
            try:
                return bytes(held.decrypt(wrapped[33:], mechanism=Mechanism.AES_GCM, mechanism_param=params))
            except _GONE as error:
                raise self._lost() from error
            except pkcs11.PKCS11Error as error:
                raise Corrupt(
                    "a wrapped key does not open under its root key", "it was altered, or belongs elsewhere"
                ) from error

    def rotate(self, name: str) -> int:
        """Make the next version on the token; older ones still unwrap."""
        with self._lock:
            held = self._held(name)
            return self._create(name, max(held)[0] + 1 if held else 1)[0]

    def newest(self, name: str) -> int:
        """The version that wraps now; 0 when there is none."""
        with self._lock:
            return max(self._held(name), default=(0, b""))[0]

    def version(self, wrapped: bytes) -> int:
        """The version of the root key that these bytes are wrapped under."""
        if len(wrapped) < 49 or wrapped[0] != SUITE:
            raise Corrupt(
                "a wrapped key has a form that this provider does not know", "was it wrapped by another provider?"
            )
        return int.from_bytes(wrapped[1:5], "big")

    def retire(self, name: str, below: int) -> None:
        """Destroy every version under `below` on the token, never the newest."""
        with self._lock:
            held = self._held(name)
            for version, ident in held:
                if version < min(below, max(held)[0]):
                    self._ask(self._object(name, ident).destroy)

    def close(self) -> None:
        """Log out of the token."""
        with self._lock:
            self._door.users = max(0, self._door.users - 1)
            if self._door.users == 0 and self._door.session is not None:
                self._door.session.close()
                self._door.session = None

    def __repr__(self) -> str:
        return "Pkcs11Secrets(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key provider is never pickled")

    def _opened(self) -> Any:
        if self._door.session is None:
            try:
                token = pkcs11.lib(self._library).get_token(token_label=self._token)
                self._door.session = token.open(rw=True, user_pin=self._pin)
            except pkcs11.PinIncorrect as error:
                raise Invalid(
                    "the token refuses the pin", "check the pin; tokens lock after a few wrong ones"
                ) from error
            except (pkcs11.PKCS11Error, RuntimeError) as error:
                raise Unavailable(
                    f"the key token {self._token} cannot be opened", "check the library, the token label and the device"
                ) from error
        return self._door.session

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except pkcs11.PKCS11Error as error:
            raise self._lost() from error

    def _lost(self) -> Unavailable:
        self._door.session = None  # the next call logs in again
        return Unavailable("the key token does not answer", "check the device; the same call may work later")

    def _held(self, name: str) -> list[tuple[int, bytes]]:
        if not _NAME.fullmatch(name):
            raise Invalid(f"{name[:80]!r} is no name of a root key", "small letters, digits and dashes")
        query = {Attribute.CLASS: ObjectClass.SECRET_KEY, Attribute.KEY_TYPE: KeyType.AES}
        session = self._opened()
        found = self._ask(lambda: [(str(key.label), bytes(key.id)) for key in session.get_objects(query)])
        matches = ((_LABEL.fullmatch(label), ident) for label, ident in found)
        return [(int(match[2]), ident) for match, ident in matches if match and match[1] == name]

    def _object(self, name: str, ident: bytes) -> Any:
        query = {Attribute.CLASS: ObjectClass.SECRET_KEY, Attribute.ID: ident}
        session = self._opened()
        found = self._ask(lambda: list(session.get_objects(query)))
        if not found:
            raise NotFound(
                f"the version of root key {name} that wrapped this is not on the token",
                "it was retired, or this is another token",
            )
        return found[0]

    def _create(self, name: str, version: int) -> tuple[int, bytes]:
        ident = os.urandom(16)
        template = {Attribute.SENSITIVE: True, Attribute.EXTRACTABLE: False, Attribute.PRIVATE: True}
        session = self._opened()
        self._ask(
            lambda: session.generate_key(
                KeyType.AES, 256, label=f"falaj-{name}-v{version}", id=ident, store=True, template=template
            )
        )
        return version, ident


def _door(library: str, token: str) -> _Door:
    return _DOORS.setdefault((library, token), _Door())


def _bound(name: str, version: int, context: bytes) -> bytes:
    return f"falaj-root\0{name}\0{version}\0".encode() + context
