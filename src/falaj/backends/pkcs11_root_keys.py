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

from falaj.core.credential import read_credential
from falaj.core.errors import CorruptData, Invalid, NotFound, Unavailable

CIPHER_SUITE = 2
_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_LABEL_PATTERN = re.compile(r"falaj-(.+)-v([1-9][0-9]{0,8})")
_SESSION_LOST_ERRORS = (
    pkcs11.SessionHandleInvalid,
    pkcs11.SessionClosed,
    pkcs11.DeviceRemoved,
    pkcs11.TokenNotPresent,
    pkcs11.UserNotLoggedIn,
)


@dataclass(slots=True)
class _TokenLogin:
    """The login to one token: PKCS#11 knows one a process, and its sessions are not for two threads at once."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    session: Any = None
    users: int = 0


_LOGINS: dict[tuple[str, str], _TokenLogin] = {}


class Pkcs11RootKeyProvider:
    """Secrets port over one token."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        url_parts = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(url_parts.query).items()}
        self._library_path = unquote(url_parts.path)
        self._token_label = str(options.get("token", "")) or query.get("token", "")
        self._pin = str(options.get("pin", "")) or read_credential(query.get("pin", ""), "pin")
        if not self._library_path or not self._token_label:
            raise Invalid(
                "pkcs11: names no library or no token",
                "for example pkcs11:/usr/lib/softhsm/libsofthsm2.so?token=kms&pin=env:FALAJ_PIN",
            )
        self._login = _get_login(self._library_path, self._token_label)
        self._lock = self._login.lock
        with self._lock:
            self._login.users += 1
            self._open_session()

    def wrap(self, name: str, key: bytes, context: bytes) -> bytes:
        """Seal `key` inside the token under the newest version of root key `name`, made on first use."""
        with self._lock:
            versions = self._list_versions(name)
            version, key_id = max(versions) if versions else self._create_version(name, 1)
            nonce = os.urandom(12)
            gcm_params = GCMParams(nonce, _make_associated_data(name, version, context), 128)
            ciphertext = bytes(
                self._call_token(
                    lambda: self._get_key_object(name, key_id).encrypt(
                        key, mechanism=Mechanism.AES_GCM, mechanism_param=gcm_params
                    )
                )
            )
        return bytes([CIPHER_SUITE]) + version.to_bytes(4, "big") + key_id + nonce + ciphertext

    def unwrap(self, name: str, wrapped: bytes, context: bytes) -> bytes:
        """The key that `wrap` was given, or Corrupt when anything at all differs."""
        version = self.version(wrapped)
        gcm_params = GCMParams(wrapped[21:33], _make_associated_data(name, version, context), 128)
        with self._lock:
            key_object = self._get_key_object(name, wrapped[5:21])
            try:
                return bytes(key_object.decrypt(wrapped[33:], mechanism=Mechanism.AES_GCM, mechanism_param=gcm_params))
            except _SESSION_LOST_ERRORS as error:
                raise self._lost_session_error() from error
            except pkcs11.PKCS11Error as error:
                raise CorruptData(
                    "a wrapped key does not open under its root key", "it was altered, or belongs elsewhere"
                ) from error

    def rotate(self, name: str) -> int:
        """Make the next version on the token; older ones still unwrap."""
        with self._lock:
            versions = self._list_versions(name)
            return self._create_version(name, max(versions)[0] + 1 if versions else 1)[0]

    def newest(self, name: str) -> int:
        """The version that wraps now; 0 when there is none."""
        with self._lock:
            return max(self._list_versions(name), default=(0, b""))[0]

    def version(self, wrapped: bytes) -> int:
        """The version of the root key that these bytes are wrapped under."""
        if len(wrapped) < 49 or wrapped[0] != CIPHER_SUITE:
            raise CorruptData(
                "a wrapped key has a form that this provider does not know", "was it wrapped by another provider?"
            )
        return int.from_bytes(wrapped[1:5], "big")

    def retire(self, name: str, below_version: int) -> None:
        """Destroy every version under `below_version` on the token, never the newest."""
        with self._lock:
            versions = self._list_versions(name)
            for version, key_id in versions:
                if version < min(below_version, max(versions)[0]):
                    self._call_token(self._get_key_object(name, key_id).destroy)

    def close(self) -> None:
        """Log out of the token."""
        with self._lock:
            self._login.users = max(0, self._login.users - 1)
            if self._login.users == 0 and self._login.session is not None:
                self._login.session.close()
                self._login.session = None

    def __repr__(self) -> str:
        return "Pkcs11Secrets(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key provider is never pickled")

    def _open_session(self) -> Any:
        if self._login.session is None:
            try:
                token = pkcs11.lib(self._library_path).get_token(token_label=self._token_label)
                self._login.session = token.open(rw=True, user_pin=self._pin)
            except pkcs11.PinIncorrect as error:
                raise Invalid(
                    "the token refuses the pin", "check the pin; tokens lock after a few wrong ones"
                ) from error
            except (pkcs11.PKCS11Error, RuntimeError) as error:
                raise Unavailable(
                    f"the key token {self._token_label} cannot be opened",
                    "check the library, the token label and the device",
                ) from error
        return self._login.session

    def _call_token(self, function: Any) -> Any:
        try:
            return function()
        except pkcs11.PKCS11Error as error:
            raise self._lost_session_error() from error

    def _lost_session_error(self) -> Unavailable:
        self._login.session = None  # the next call logs in again
        return Unavailable("the key token does not answer", "check the device; the same call may work later")

    def _list_versions(self, name: str) -> list[tuple[int, bytes]]:
        if not _NAME_PATTERN.fullmatch(name):
            raise Invalid(f"{name[:80]!r} is no name of a root key", "small letters, digits and dashes")
        query = {Attribute.CLASS: ObjectClass.SECRET_KEY, Attribute.KEY_TYPE: KeyType.AES}
        session = self._open_session()
        labels_and_ids = self._call_token(
            lambda: [(str(key.label), bytes(key.id)) for key in session.get_objects(query)]
        )
        matches = ((_LABEL_PATTERN.fullmatch(label), key_id) for label, key_id in labels_and_ids)
        return [(int(match[2]), key_id) for match, key_id in matches if match and match[1] == name]

    def _get_key_object(self, name: str, key_id: bytes) -> Any:
        query = {Attribute.CLASS: ObjectClass.SECRET_KEY, Attribute.ID: key_id}
        session = self._open_session()
        key_objects = self._call_token(lambda: list(session.get_objects(query)))
        if not key_objects:
            raise NotFound(
                f"the version of root key {name} that wrapped this is not on the token",
                "it was retired, or this is another token",
            )
        return key_objects[0]

    def _create_version(self, name: str, version: int) -> tuple[int, bytes]:
        key_id = os.urandom(16)
        template = {Attribute.SENSITIVE: True, Attribute.EXTRACTABLE: False, Attribute.PRIVATE: True}
        session = self._open_session()
        self._call_token(
            lambda: session.generate_key(
                KeyType.AES, 256, label=f"falaj-{name}-v{version}", id=key_id, store=True, template=template
            )
        )
        return version, key_id


def _get_login(library: str, token: str) -> _TokenLogin:
    return _LOGINS.setdefault((library, token), _TokenLogin())


def _make_associated_data(name: str, version: int, context: bytes) -> bytes:
    return f"falaj-root\0{name}\0{version}\0".encode() + context
