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

from falaj.core.credential import ROOT_KEY, read_credential
from falaj.core.errors import CorruptData, Invalid, NotFound, Unavailable

CIPHER_SUITE = 1
_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_FILE_PATTERN = re.compile(r"([a-z0-9][a-z0-9-]{0,62})\.([1-9][0-9]{0,8})\.key")
_FILE_MAGIC = f"{ROOT_KEY.decode()}1"
_SCRYPT_PARAMETERS = (2**15, 8, 1)


class FileRootKeyProvider:
    """Secrets port over a folder of mode 0700 and files of mode 0600, all owned by the process's user."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        url_parts = urlsplit(url)
        self._folder = Path(unquote(url_parts.path)).expanduser()
        credential_pointer = parse_qs(url_parts.query).get("passphrase", [""])[0]
        self._passphrase = str(options.get("passphrase", "")) or (
            read_credential(credential_pointer, "passphrase") if credential_pointer else ""
        )
        self._open_keys: dict[tuple[str, int], bytes] = {}
        self._lock = threading.Lock()
        if not url_parts.path:
            raise Invalid("file: names no folder", "for example file:/var/lib/falaj/keys")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder_fd = _open_keys_folder(self._folder)

    def wrap(self, name: str, key: bytes, context: bytes) -> bytes:
        """Seal `key` under the newest version of root key `name`, made on first use."""
        version = self.newest(name) or self._create_version(name, 1)
        nonce = os.urandom(12)
        ciphertext = AESGCM(self._get_key(name, version)).encrypt(
            nonce, key, _make_associated_data(name, version, context)
        )
        return bytes([CIPHER_SUITE]) + version.to_bytes(4, "big") + nonce + ciphertext

    def unwrap(self, name: str, wrapped: bytes, context: bytes) -> bytes:
        """The key that `wrap` was given, or Corrupt when anything at all differs."""
        version = self.version(wrapped)
        try:
            return AESGCM(self._get_key(name, version)).decrypt(
                wrapped[5:17], wrapped[17:], _make_associated_data(name, version, context)
            )
        except (InvalidTag, ValueError) as error:
            raise CorruptData(
                "a wrapped key does not open under its root key", "it was altered, or belongs elsewhere"
            ) from error

    def rotate(self, name: str) -> int:
        """Make the next version; older ones still unwrap."""
        return self._create_version(name, self.newest(name) + 1)

    def newest(self, name: str) -> int:
        """The version that wraps now; 0 when there is none."""
        return max(self._list_versions(name), default=0)

    def version(self, wrapped: bytes) -> int:
        """The version of the root key that these bytes are wrapped under."""
        if len(wrapped) < 33 or wrapped[0] != CIPHER_SUITE:
            raise CorruptData(
                "a wrapped key has a form that this provider does not know", "was it wrapped by another provider?"
            )
        return int.from_bytes(wrapped[1:5], "big")

    def retire(self, name: str, below_version: int) -> None:
        """Destroy every version under `below_version`, never the newest."""
        with self._lock:
            for version in sorted(self._list_versions(name)):
                if version < min(below_version, self.newest(name)):
                    self._open_keys.pop((name, version), None)
                    self._shred_file(_make_file_name(name, version))
            os.fsync(self._folder_fd)

    def close(self) -> None:
        """Forget the keys in memory."""
        self._open_keys.clear()
        if self._folder_fd >= 0:
            os.close(self._folder_fd)
            self._folder_fd = -1

    def __repr__(self) -> str:
        return "FileSecrets(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key provider is never pickled")

    def _list_versions(self, name: str) -> list[int]:
        if not _NAME_PATTERN.fullmatch(name):
            raise Invalid(f"{name[:80]!r} is no name of a root key", "small letters, digits and dashes")
        matches = (_FILE_PATTERN.fullmatch(file_name) for file_name in os.listdir(self._folder_fd))  # noqa: PTH208 - by descriptor
        return [int(match[2]) for match in matches if match and match[1] == name]

    def _shred_file(self, file_name: str) -> None:
        # Overwritten first: no promise on flash or copy-on-write disks, but it costs nothing where it helps.
        fd = os.open(file_name, os.O_WRONLY | os.O_NOFOLLOW, dir_fd=self._folder_fd)
        with os.fdopen(fd, "wb") as file:
            file.write(b"\0" * 512)
            file.flush()
            os.fsync(file.fileno())
        os.unlink(file_name, dir_fd=self._folder_fd)

    def _get_key(self, name: str, version: int) -> bytes:
        with self._lock:
            if (name, version) not in self._open_keys:
                self._open_keys[name, version] = self._read_key_file(name, version)
            return self._open_keys[name, version]

    def _create_version(self, name: str, version: int) -> int:
        try:
            self._write_key_file(name, version, secrets.token_bytes(32))
        except OSError as error:
            raise Unavailable(
                f"the root key cannot be written: {error.strerror}",
                "check the keys folder, its owner and its free space",
            ) from error
        return version

    def _write_key_file(self, name: str, version: int, key: bytes) -> None:
        draft_name = f".{secrets.token_hex(8)}.tmp"
        fd = os.open(draft_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=self._folder_fd)
        try:
            with os.fdopen(fd, "w") as file:
                file.write(self._encode_key_file(name, version, key))
                file.flush()
                os.fsync(file.fileno())
            # link, not rename: of two processes that make the same version one wins and the other reads the winner's.
            with contextlib.suppress(FileExistsError):
                os.link(
                    draft_name, _make_file_name(name, version), src_dir_fd=self._folder_fd, dst_dir_fd=self._folder_fd
                )
        finally:
            os.unlink(draft_name, dir_fd=self._folder_fd)
            os.fsync(self._folder_fd)

    def _read_key_file(self, name: str, version: int) -> bytes:
        try:
            fd = os.open(_make_file_name(name, version), os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._folder_fd)
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
            _require_private(os.fstat(file.fileno()), f"the file of root key {name}", "chmod 600")
            return self._decode_key_file(name, version, file.read(4096))

    def _encode_key_file(self, name: str, version: int, key: bytes) -> str:
        if not self._passphrase:
            return f"{_FILE_MAGIC} plain {_to_base64(key)}\n"
        salt, nonce = os.urandom(16), os.urandom(12)
        ciphertext = AESGCM(_derive_passphrase_key(self._passphrase, salt, *_SCRYPT_PARAMETERS)).encrypt(
            nonce, key, _make_associated_data(name, version, b"file")
        )
        return (
            " ".join(
                [_FILE_MAGIC, "scrypt", *map(str, _SCRYPT_PARAMETERS), _to_base64(salt), _to_base64(nonce + ciphertext)]
            )
            + "\n"
        )

    def _decode_key_file(self, name: str, version: int, text: str) -> bytes:
        hint = "restore the keys folder from its backup"
        try:
            magic, encoding, *fields = text.split()
            if magic != _FILE_MAGIC or encoding not in ("plain", "scrypt"):
                raise CorruptData(f"the file of root key {name} has a form that is not known", hint)
            if encoding == "plain":
                (key,) = (base64.b64decode(part, validate=True) for part in fields)
            else:
                key = self._decrypt_key_fields(name, version, fields)
        except (ValueError, TypeError) as error:
            raise CorruptData(f"the file of root key {name} cannot be read", hint) from error
        if len(key) != 32:
            raise CorruptData(f"the file of root key {name} holds no 256-bit key", hint)
        return key

    def _decrypt_key_fields(self, name: str, version: int, fields: list[str]) -> bytes:
        if not self._passphrase:
            raise Invalid(
                "the root key is sealed under a passphrase and none was given",
                "set ?passphrase=env:NAME on the file: address",
            )
        n, r, p = map(int, fields[:3])
        if n * r * p > 2**22:
            raise CorruptData(
                f"the file of root key {name} asks for an absurd amount of work", "restore it from its backup"
            )
        salt, ciphertext = (base64.b64decode(part, validate=True) for part in fields[3:])
        try:
            return AESGCM(_derive_passphrase_key(self._passphrase, salt, n, r, p)).decrypt(
                ciphertext[:12], ciphertext[12:], _make_associated_data(name, version, b"file")
            )
        except InvalidTag as error:
            raise Invalid("the passphrase does not open the root key", "check the passphrase") from error


def _open_keys_folder(folder: Path) -> int:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise Invalid(
            "the keys folder cannot be opened", "it must be a folder, not a link, owned by the service's user"
        ) from error
    try:
        _require_private(os.fstat(fd), "the keys folder", "chmod 700")
    except Invalid:
        os.close(fd)
        raise
    return fd


def _require_private(file_status: os.stat_result, label: str, remedy: str) -> None:
    if stat.S_IMODE(file_status.st_mode) & 0o077:
        raise Invalid(
            f"{label} is open to other users (mode {stat.S_IMODE(file_status.st_mode):o})",
            f"run: {remedy}, and rotate the root key if others had access",
        )
    if file_status.st_uid != os.geteuid():
        raise Invalid(f"{label} belongs to another user", "it must be owned by the user that runs the service")


def _make_associated_data(name: str, version: int, context: bytes) -> bytes:
    return f"falaj-root\0{name}\0{version}\0".encode() + context


def _derive_passphrase_key(passphrase: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(passphrase.encode())


def _make_file_name(name: str, version: int) -> str:
    return f"{name}.{version}.key"


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
