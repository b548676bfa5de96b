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

from falaj.core.credential import credential
from falaj.core.errors import Corrupt, Denied, Invalid, NotFound, Unavailable

TIMEOUT_S = 10.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_WRAPPED = re.compile(rb"vault:v([1-9][0-9]{0,8}):[A-Za-z0-9+/=]{40,4096}")


class VaultSecrets:
    """Secrets port over the transit API; made for keys of type aes256-gcm96."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        parts = urlsplit(url.removeprefix("vault:"))
        query = {key: values[0] for key, values in parse_qs(parts.query).items()} | {
            k: str(v) for k, v in options.items()
        }
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            raise Invalid(
                "vault: needs an https address",
                "for example vault:https://vault.example:8200/transit?token=env:VAULT_TOKEN",
            )
        headers = {"X-Vault-Token": credential(query.get("token", ""), "token"), "X-Vault-Request": "true"}
        if namespace := query.get("namespace", ""):
            headers["X-Vault-Namespace"] = namespace
        self._mount = parts.path.strip("/") or "transit"
        self._client = httpx.Client(
            base_url=f"{parts.scheme}://{parts.netloc}/v1/",
            headers=headers,
            verify=_trust(query.get("ca", "")),
            timeout=TIMEOUT_S,
            follow_redirects=False,
            trust_env=False,
        )

    def wrap(self, name: str, key: bytes, context: bytes) -> bytes:
        """Encrypt `key` under the newest version of transit key `name`, made on first use."""
        body = {"plaintext": _text(key), "associated_data": _text(_bound(name, context))}
        try:
            data = self._post(f"encrypt/{_checked(name)}", body)
        except NotFound:
            self._create(name)
            data = self._post(f"encrypt/{name}", body)
        wrapped = str(data.get("ciphertext", "")).encode()
        self.version(wrapped)
        return wrapped

    def unwrap(self, name: str, wrapped: bytes, context: bytes) -> bytes:
        """The key that `wrap` was given, or Corrupt when anything at all differs."""
        self.version(wrapped)
        try:
            data = self._post(
                f"decrypt/{_checked(name)}",
                {"ciphertext": wrapped.decode(), "associated_data": _text(_bound(name, context))},
            )
            return base64.b64decode(data["plaintext"], validate=True)
        except Invalid as error:
            raise Corrupt(
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
            self._create(name)
        else:
            self._post(f"keys/{name}/rotate", {})
        return self.newest(name)

    def newest(self, name: str) -> int:
        """The version that wraps now; 0 when there is none."""
        try:
            found = self._call("GET", f"keys/{_checked(name)}")
            return max(int(version) for version in found["keys"])
        except NotFound:
            return 0
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(
                "the key service answered without versions", "is this address really a transit engine?"
            ) from error

    def version(self, wrapped: bytes) -> int:
        """The version of the root key that these bytes are wrapped under."""
        match = _WRAPPED.fullmatch(wrapped)
        if match is None:
            raise Corrupt(
                "a wrapped key has a form that this provider does not know", "was it wrapped by another provider?"
            )
        return int(match[1])

    def retire(self, name: str, below: int) -> None:
        """Let the server refuse every version under `below`, never the newest."""
        self._post(f"keys/{_checked(name)}/config", {"min_decryption_version": min(below, self.newest(name))})

    def close(self) -> None:
        """Drop the connections."""
        self._client.close()

    def __repr__(self) -> str:
        return "VaultSecrets(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key provider is never pickled")

    def _create(self, name: str) -> None:
        self._post(
            f"keys/{_checked(name)}", {"type": "aes256-gcm96", "exportable": False, "allow_plaintext_backup": False}
        )

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = self._client.request(method, f"{self._mount}/{path}", json=body)
        except httpx.HTTPError:
            # no cause: its text may carry the request, and the request carries a key
            raise Unavailable(
                "the key service does not answer", "check the address, its certificate and the network"
            ) from None
        if answer.status_code not in (200, 204):
            raise _refusal(answer)
        if answer.status_code == 204:
            return {}
        try:
            data = answer.json()["data"]
        except (ValueError, KeyError, TypeError):
            data = None
        if data is None and method == "POST" and path.startswith("keys/"):
            return {}
        if not isinstance(data, dict):
            raise Unavailable(
                "the key service answered in a form that is not known", "is this address really a transit engine?"
            )
        return data


def _refusal(answer: httpx.Response) -> Exception:
    errors = answer.text[:2000]
    if answer.status_code == 404 or (answer.status_code == 400 and "encryption key not found" in errors):
        return NotFound("the key service has no such key", "check the mount path and the key name")
    if answer.status_code == 400:
        return Invalid(
            "the key service refuses the request", "check that the transit key is of type aes256-gcm96 and not derived"
        )
    if answer.status_code in (401, 403):
        return Denied(
            "the key service refuses our token",
            "renew the token; it needs create, update and read on the transit paths",
        )
    return Unavailable(
        f"the key service is not ready (status {answer.status_code})",
        "it may be sealed or starting; the same call may work later",
    )


def _trust(ca: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name[:80]!r} is no name of a root key", "small letters, digits and dashes")
    return name


def _bound(name: str, context: bytes) -> bytes:
    return f"falaj-root\0{name}\0".encode() + context


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
