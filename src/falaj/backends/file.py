"""Root keys as files in a folder that only its owner may enter: the `file:` provider of small installations.

Each version is one file, `<name>.<version>.key`, written once. With a passphrase the file holds the key sealed under
it; without one, whoever reads the disk as this user has the key, and docs/keys.md says so.
"""

import base64
import contextlib
import os
import re
import secrets
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from falaj.core.credential import ROOT_KEY, credential
from falaj.core.errors import Corrupt, Invalid, NotFound, Unavailable

SUITE = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_FILE = re.compile(r"([a-z0-9][a-z0-9-]{0,62})\.([1-9][0-9]{0,8})\.key")
_MAGIC = f"{ROOT_KEY.decode()}1"
_SCRYPT = (2**15, 8, 1)


class FileSecrets:
    """Secrets port over a folder of mode 0700 and files of mode 0600, all owned by the process's user."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        parts = urlsplit(url)
        self._folder = Path(unquote(parts.path)).expanduser()
        pointer = parse_qs(parts.query).get("passphrase", [""])[0]
        self._passphrase = str(options.get("passphrase", "")) or (credential(pointer, "passphrase") if pointer else "")
        self._open_keys: dict[tuple[str, int], bytes] = {}
        self._lock = threading.Lock()
        if not parts.path:
            raise Invalid("file: names no folder", "for example file:/var/lib/falaj/keys")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = _open_folder(self._folder)

    def wrap(self, name: str, key: bytes, context: bytes) -> bytes:
        """Seal `key` under the newest version of root key `name`, made on first use."""
        version = self.newest(name) or self._create(name, 1)
        nonce = os.urandom(12)
        sealed = AESGCM(self._key(name, version)).encrypt(nonce, key, _bound(name, version, context))
        return bytes([SUITE]) + version.to_bytes(4, "big") + nonce + sealed

    def unwrap(self, name: str, wrapped: bytes, context: bytes) -> bytes:
        """The key that `wrap` was given, or Corrupt when anything at all differs."""
        version = self.version(wrapped)
        try:
            return AESGCM(self._key(name, version)).decrypt(wrapped[5:17], wrapped[17:], _bound(name, version, context))
        except (InvalidTag, ValueError) as error:
            raise Corrupt(
                "a wrapped key does not open under its root key", "it was altered, or belongs elsewhere"
            ) from error

    def rotate(self, name: str) -> int:
        """Make the next version; older ones still unwrap."""
        return self._create(name, self.newest(name) + 1)

    def newest(self, name: str) -> int:
        """The version that wraps now; 0 when there is none."""
        return max(self._versions(name), default=0)

    def version(self, wrapped: bytes) -> int:
        """The version of the root key that these bytes are wrapped under."""
        if len(wrapped) < 33 or wrapped[0] != SUITE:
            raise Corrupt(
                "a wrapped key has a form that this provider does not know", "was it wrapped by another provider?"
            )
        return int.from_bytes(wrapped[1:5], "big")

    def retire(self, name: str, below: int) -> None:
        """Destroy every version under `below`, never the newest."""
        with self._lock:
            for version in sorted(self._versions(name)):
                if version < min(below, self.newest(name)):
                    self._open_keys.pop((name, version), None)
                    self._shred(_file_name(name, version))
            os.fsync(self._fd)

    def close(self) -> None:
        """Forget the keys in memory."""
        self._open_keys.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __repr__(self) -> str:
        return "FileSecrets(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key provider is never pickled")

    def _versions(self, name: str) -> list[int]:
        if not _NAME.fullmatch(name):
            raise Invalid(f"{name[:80]!r} is no name of a root key", "small letters, digits and dashes")
        found = (_FILE.fullmatch(file) for file in os.listdir(self._fd))  # noqa: PTH208 - by descriptor
        return [int(match[2]) for match in found if match and match[1] == name]

    def _shred(self, file_name: str) -> None:
        # Overwritten first: no promise on flash or copy-on-write disks, but it costs nothing where it helps.
        fd = os.open(file_name, os.O_WRONLY | os.O_NOFOLLOW, dir_fd=self._fd)
        with os.fdopen(fd, "wb") as file:
            file.write(b"\0" * 512)
            file.flush()
            os.fsync(file.fileno())
        os.unlink(file_name, dir_fd=self._fd)

    def _key(self, name: str, version: int) -> bytes:
        with self._lock:
            if (name, version) not in self._open_keys:
                self._open_keys[name, version] = self._read(name, version)
            return self._open_keys[name, version]

    def _create(self, name: str, version: int) -> int:
        try:
            self._write(name, version, secrets.token_bytes(32))
        except OSError as error:
            raise Unavailable(
                f"the root key cannot be written: {error.strerror}",
                "check the keys folder, its owner and its free space",
            ) from error
        return version

    def _write(self, name: str, version: int, key: bytes) -> None:
        staged = f".{secrets.token_hex(8)}.tmp"
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=self._fd)
        try:
            with os.fdopen(fd, "w") as file:
                file.write(self._encode(name, version, key))
                file.flush()
                os.fsync(file.fileno())
            # link, not rename: of two processes that make the same version one wins and the other reads the winner's.
            with contextlib.suppress(FileExistsError):
                os.link(staged, _file_name(name, version), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        finally:
            os.unlink(staged, dir_fd=self._fd)
            os.fsync(self._fd)

    def _read(self, name: str, version: int) -> bytes:
        try:
            fd = os.open(_file_name(name, version), os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._fd)
        except FileNotFoundError as error:
            raise NotFound(
                f"root key {name} has no version {version}", "it was retired, or this is another installation's data"
            ) from error
        except OSError as error:
            raise Invalid(
                f"the file of root key {name} cannot be opened",
                "it must be a plain file, mode 0600, owned by the service's user",
            ) from error
        with os.fdopen(fd) as file:
            _refuse_if_open_to_others(os.fstat(file.fileno()), f"the file of root key {name}", "chmod 600")
            return self._decode(name, version, file.read(4096))

    def _encode(self, name: str, version: int, key: bytes) -> str:
        if not self._passphrase:
            return f"{_MAGIC} plain {_text(key)}\n"
        salt, nonce = os.urandom(16), os.urandom(12)
        sealed = AESGCM(_stretch(self._passphrase, salt, *_SCRYPT)).encrypt(nonce, key, _bound(name, version, b"file"))
        return " ".join([_MAGIC, "scrypt", *map(str, _SCRYPT), _text(salt), _text(nonce + sealed)]) + "\n"

    def _decode(self, name: str, version: int, text: str) -> bytes:
        hint = "restore the keys folder from its backup"
        try:
            magic, form, *rest = text.split()
            if magic != _MAGIC or form not in ("plain", "scrypt"):
                raise Corrupt(f"the file of root key {name} has a form that is not known", hint)
            if form == "plain":
                (key,) = (base64.b64decode(part, validate=True) for part in rest)
            else:
                key = self._decrypt(name, version, rest)
        except (ValueError, TypeError) as error:
            raise Corrupt(f"the file of root key {name} cannot be read", hint) from error
        if len(key) != 32:
            raise Corrupt(f"the file of root key {name} holds no 256-bit key", hint)
        return key

    def _decrypt(self, name: str, version: int, fields: list[str]) -> bytes:
        if not self._passphrase:
            raise Invalid(
                "the root key is sealed under a passphrase and none was given",
                "set ?passphrase=env:NAME on the file: address",
            )
        n, r, p = map(int, fields[:3])
        if n * r * p > 2**22:
            raise Corrupt(
                f"the file of root key {name} asks for an absurd amount of work", "restore it from its backup"
            )
        salt, sealed = (base64.b64decode(part, validate=True) for part in fields[3:])
        try:
            return AESGCM(_stretch(self._passphrase, salt, n, r, p)).decrypt(
                sealed[:12], sealed[12:], _bound(name, version, b"file")
            )
        except InvalidTag as error:
            raise Invalid("the passphrase does not open the root key", "check the passphrase") from error


def _open_folder(folder: Path) -> int:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise Invalid(
            "the keys folder cannot be opened", "it must be a folder, not a link, owned by the service's user"
        ) from error
    try:
        _refuse_if_open_to_others(os.fstat(fd), "the keys folder", "chmod 700")
    except Invalid:
        os.close(fd)
        raise
    return fd


def _refuse_if_open_to_others(info: os.stat_result, what: str, remedy: str) -> None:
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise Invalid(
            f"{what} is open to other users (mode {stat.S_IMODE(info.st_mode):o})",
            f"run: {remedy}, and rotate the root key if others had access",
        )
    if info.st_uid != os.geteuid():
        raise Invalid(f"{what} belongs to another user", "it must be owned by the user that runs the service")


def _bound(name: str, version: int, context: bytes) -> bytes:
    return f"falaj-root\0{name}\0{version}\0".encode() + context


def _stretch(passphrase: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(passphrase.encode())


def _file_name(name: str, version: int) -> str:
    return f"{name}.{version}.key"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
