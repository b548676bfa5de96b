"""Root keys in a Vault or OpenBao server's transit engine: `vault:https://host:8200/transit?token=env:VAULT_TOKEN`.

The server encrypts and decrypts; the root key never leaves it. Our context travels as the AEAD's associated data. The
address must be HTTPS with a certificate that verifies; plain HTTP is for an agent on the same machine only.
"""

import base64
import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from falaj.core.credential import read_credential
from falaj.core.errors import CorruptData, Denied, Invalid, NotFound, Unavailable

REQUEST_TIMEOUT_S = 10.0
_LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_WRAPPED_PATTERN = re.compile(rb"vault:v([1-9][0-9]{0,8}):[A-Za-z0-9+/=]{40,4096}")


class VaultRootKeyProvider:
    """Secrets port over the transit API; made for keys of type aes256-gcm96."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        url_parts = urlsplit(url.removeprefix("vault:"))
        query = {key: values[0] for key, values in parse_qs(url_parts.query).items()} | {
            option_name: str(option_value) for option_name, option_value in options.items()
        }
        if url_parts.scheme != "https" and not (url_parts.scheme == "http" and url_parts.hostname in _LOOPBACK_HOSTS):
            raise Invalid(
                "vault: needs an https address",
                "for example vault:https://vault.example:8200/transit?token=env:VAULT_TOKEN",
            )
        headers = {"X-Vault-Token": read_credential(query.get("token", ""), "token"), "X-Vault-Request": "true"}
        if namespace := query.get("namespace", ""):
            headers["X-Vault-Namespace"] = namespace
        self._mount = url_parts.path.strip("/") or "transit"
        self._client = httpx.Client(
            base_url=f"{url_parts.scheme}://{url_parts.netloc}/v1/",
            headers=headers,
            verify=_create_ssl_context(query.get("ca", "")),
            timeout=REQUEST_TIMEOUT_S,
            follow_redirects=False,
            trust_env=False,
        )

    def wrap(self, name: str, key: bytes, context: bytes) -> bytes:
        """Encrypt `key` under the newest version of transit key `name`, made on first use."""
        body = {"plaintext": _to_base64(key), "associated_data": _to_base64(_make_associated_data(name, context))}
        try:
            data = self._post_json(f"encrypt/{_require_valid_name(name)}", body)
        except NotFound:
            self._create_key(name)
            data = self._post_json(f"encrypt/{name}", body)
        wrapped = str(data.get("ciphertext", "")).encode()
        self.version(wrapped)
        return wrapped

    def unwrap(self, name: str, wrapped: bytes, context: bytes) -> bytes:
        """The key that `wrap` was given, or Corrupt when anything at all differs."""
        self.version(wrapped)
        try:
            data = self._post_json(
                f"decrypt/{_require_valid_name(name)}",
                {"ciphertext": wrapped.decode(), "associated_data": _to_base64(_make_associated_data(name, context))},
            )
            return base64.b64decode(data["plaintext"], validate=True)
        except Invalid as error:
            raise CorruptData(
                "a wrapped key does not open under its root key",
                "it was altered, belongs elsewhere, or its version was retired",
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(
                "the key service answered without a key", "is this address really a transit engine?"
            ) from error

    def rotate(self, name: str) -> int:
        """Make the next version on the server; older ones still unwrap."""
        if self.newest(name) == 0:
            self._create_key(name)
        else:
            self._post_json(f"keys/{name}/rotate", {})
        return self.newest(name)

    def newest(self, name: str) -> int:
        """The version that wraps now; 0 when there is none."""
        try:
            key_info = self._call_api("GET", f"keys/{_require_valid_name(name)}")
            return max(int(version) for version in key_info["keys"])
        except NotFound:
            return 0
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(
                "the key service answered without versions", "is this address really a transit engine?"
            ) from error

    def version(self, wrapped: bytes) -> int:
        """The version of the root key that these bytes are wrapped under."""
        match = _WRAPPED_PATTERN.fullmatch(wrapped)
        if match is None:
            raise CorruptData(
                "a wrapped key has a form that this provider does not know", "was it wrapped by another provider?"
            )
        return int(match[1])

    def retire(self, name: str, below_version: int) -> None:
        """Let the server refuse every version under `below_version`, never the newest."""
        self._post_json(
            f"keys/{_require_valid_name(name)}/config",
            {"min_decryption_version": min(below_version, self.newest(name))},
        )

    def close(self) -> None:
        """Drop the connections."""
        self._client.close()

    def __repr__(self) -> str:
        return "VaultSecrets(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key provider is never pickled")

    def _create_key(self, name: str) -> None:
        self._post_json(
            f"keys/{_require_valid_name(name)}",
            {"type": "aes256-gcm96", "exportable": False, "allow_plaintext_backup": False},
        )

    def _post_json(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._call_api("POST", path, body)

    def _call_api(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = self._client.request(method, f"{self._mount}/{path}", json=body)
        except httpx.HTTPError:
            # no cause: its text may carry the request, and the request carries a key
            raise Unavailable(
                "the key service does not answer", "check the address, its certificate and the network"
            ) from None
        if response.status_code not in (200, 204):
            raise _error_from_response(response)
        if response.status_code == 204:
            return {}
        try:
            data = response.json()["data"]
        except (ValueError, KeyError, TypeError):
            data = None
        if data is None and method == "POST" and path.startswith("keys/"):
            return {}
        if not isinstance(data, dict):
            raise Unavailable(
                "the key service answered in a form that is not known", "is this address really a transit engine?"
            )
        return data


def _error_from_response(response: httpx.Response) -> Exception:
    errors = response.text[:2000]
    if response.status_code == 404 or (response.status_code == 400 and "encryption key not found" in errors):
        return NotFound("the key service has no such key", "check the mount path and the key name")
    if response.status_code == 400:
        return Invalid(
            "the key service refuses the request", "check that the transit key is of type aes256-gcm96 and not derived"
        )
    if response.status_code in (401, 403):
        return Denied(
            "the key service refuses our token",
            "renew the token; it needs create, update and read on the transit paths",
        )
    return Unavailable(
        f"the key service is not ready (status {response.status_code})",
        "it may be sealed or starting; the same call may work later",
    )


def _create_ssl_context(ca: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _require_valid_name(name: str) -> str:
    if not _NAME_PATTERN.fullmatch(name):
        raise Invalid(f"{name[:80]!r} is no name of a root key", "small letters, digits and dashes")
    return name


def _make_associated_data(name: str, context: bytes) -> bytes:
    return f"falaj-root\0{name}\0".encode() + context


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
