"""One request to an endpoint as people write it: plain lists in, plain lists out, over the gateway's HTTP door."""

import os
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from falaj.core.errand import Here
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CLASSES: Mapping[int, type[FalajError]] = {
    400: Invalid, 401: Unauthenticated, 403: Denied, 404: NotFound, 409: Conflict, 413: Invalid,
}  # fmt: skip


class Caller:
    """Speaks to one endpoint. The token goes to the gateway that the platform names, and nowhere else."""

    def __init__(self, here: Here, url: str, *, token: str = "", timeout_s: float = 60.0) -> None:
        import httpx

        parts = urlsplit(url)
        if parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise Invalid("a token may not travel in the clear", "let the gateway speak TLS: falaj gateway --tls")
        found = token or os.environ.get("FALAJ_TOKEN", "") or _signed_in(here) or _own(here)
        if not found:
            hint = "set FALAJ_TOKEN, or sign in at the platform that runs: falaj login"
            raise Unauthenticated("endpoints are called with a token", hint)
        ca = os.environ.get("FALAJ_CA", "")
        self.url = url
        self.headers = {"authorization": f"Bearer {found}", **_purpose(here)}
        self.context = ssl.create_default_context(cafile=ca or None)
        self._http = httpx.Client(headers=self.headers, verify=self.context, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def infer(self, values: Mapping[str, Any], revision: int = 0, told: Any = None) -> dict[str, Any]:
        """The outputs by name, as lists in their shape. `told` is the metadata, where it was asked for already."""
        if not values:
            raise Invalid("there is nothing to ask", "give inputs by name: --inputs '{\"x\": [[0.1, 0.2]]}'")
        base = f"{self.url}/versions/{revision}" if revision else self.url
        known = {one["name"]: one for one in (told or self.metadata(revision))["inputs"]}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise Invalid(f"the model has no input {unknown[0][:80]!r}", f"it has: {', '.join(known)[:500]}")
        tensors = [tensor(name, known[name]["datatype"], value) for name, value in values.items()]
        answer = self._ask("POST", f"{base}/infer", {"inputs": tensors})
        return {one["name"]: nested(one["data"], one["shape"]) for one in answer["outputs"]}

    def metadata(self, revision: int = 0) -> Any:
        """What the endpoint's model takes and gives."""
        return self._ask("GET", f"{self.url}/versions/{revision}" if revision else self.url)

    def _ask(self, method: str, url: str, body: Any = None) -> Any:
        import httpx

        try:
            answer = self._http.request(method, url, json=body)
            found = answer.json()
        except httpx.HTTPError as error:
            raise Unavailable(f"the gateway does not answer: {error}", "falaj serve show says how it stands") from error
        except ValueError as error:
            raise Unavailable("what answers there is no gateway", "falaj serve url says where it is") from error
        if answer.status_code != 200:
            said = str(found.get("error", found))[:500] if isinstance(found, dict) else str(found)[:500]
            raise _CLASSES.get(answer.status_code, Unavailable)(said, "falaj serve show says how it stands")
        return found


def tensor(name: str, datatype: str, value: Any) -> dict[str, Any]:
    """An input of a request from nested lists."""
    shape: list[int] = []
    inner = value
    while isinstance(inner, Sequence) and not isinstance(inner, str):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    flat = _flat(value, shape, name)
    return {"name": name, "datatype": datatype, "shape": shape or [1], "data": flat}


def nested(data: Sequence[Any], shape: Sequence[int]) -> Any:
    """Flat values in their shape."""
    if len(shape) <= 1:
        return list(data)
    step = len(data) // shape[0] if shape[0] else 0
    return [nested(data[at * step : (at + 1) * step], shape[1:]) for at in range(shape[0])]


def _flat(value: Any, shape: Sequence[int], name: str) -> list[Any]:
    if not shape:
        return [value]
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != shape[0]:
        raise Invalid(f"the rows of {name[:80]!r} are not of one length", "lists in lists, all as long as the first")
    return [one for part in value for one in _flat(part, shape[1:], name)] if len(shape) > 1 else list(value)


def _signed_in(here: Here) -> str:
    """The token with which we speak to the platform, where we speak to one that runs elsewhere."""
    return _said(here, "authorization").removeprefix("Bearer ")


def _own(here: Here) -> str:
    """One that is made here, where the platform is a folder of ours."""
    made: str = getattr(here, "token", str)()
    return made


def _purpose(here: Here) -> dict[str, str]:
    said = _said(here, "falaj-purpose") or str(vars(here).get("purpose", ""))
    return {"falaj-purpose": said} if said else {}


def _said(here: Here, header: str) -> str:
    http = vars(here).get("_http")
    return str(http.headers.get(header, "")) if http is not None else ""
