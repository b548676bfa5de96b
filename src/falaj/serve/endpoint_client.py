"""One request to an endpoint as people write it: plain lists in, plain lists out, over the gateway's HTTP door."""

import os
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from falaj.core.client_command import Client
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
_ERROR_BY_STATUS: Mapping[int, type[FalajError]] = {
    400: Invalid, 401: Unauthenticated, 403: Denied, 404: NotFound, 409: Conflict, 413: Invalid,
}  # fmt: skip


class EndpointClient:
    """Speaks to one endpoint. The token goes to the gateway that the platform names, and nowhere else."""

    def __init__(self, client: Client, url: str, *, token: str = "", timeout_s: float = 60.0) -> None:
        import httpx

        parts = urlsplit(url)
        if parts.scheme != "https" and parts.hostname not in LOOPBACK_HOSTS:
            raise Invalid("a token may not travel in the clear", "let the gateway speak TLS: falaj gateway --tls")
        bearer_token = token or os.environ.get("FALAJ_TOKEN", "") or _signed_in_token(client) or _own_token(client)
        if not bearer_token:
            hint = "set FALAJ_TOKEN, or sign in at the platform that runs: falaj login"
            raise Unauthenticated("endpoints are called with a token", hint)
        ca_file = os.environ.get("FALAJ_CA", "")
        self.url = url
        self.headers = {"authorization": f"Bearer {bearer_token}", **_purpose_header(client)}
        self.context = ssl.create_default_context(cafile=ca_file or None)
        self._http = httpx.Client(headers=self.headers, verify=self.context, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> "EndpointClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def infer(self, values: Mapping[str, Any], revision: int = 0, known_metadata: Any = None) -> dict[str, Any]:
        """The outputs by name, as lists in their shape. `known_metadata` is the metadata, where it was asked for
        already."""
        if not values:
            raise Invalid("there is nothing to ask", "give inputs by name: --inputs '{\"x\": [[0.1, 0.2]]}'")
        base_url = f"{self.url}/versions/{revision}" if revision else self.url
        inputs_by_name = {item["name"]: item for item in (known_metadata or self.metadata(revision))["inputs"]}
        unknown_names = sorted(set(values) - set(inputs_by_name))
        if unknown_names:
            raise Invalid(
                f"the model has no input {unknown_names[0][:80]!r}", f"it has: {', '.join(inputs_by_name)[:500]}"
            )
        tensors = [build_input_tensor(name, inputs_by_name[name]["datatype"], value) for name, value in values.items()]
        answer = self._request_json("POST", f"{base_url}/infer", {"inputs": tensors})
        return {item["name"]: nest_values(item["data"], item["shape"]) for item in answer["outputs"]}

    def metadata(self, revision: int = 0) -> Any:
        """What the endpoint's model takes and gives."""
        return self._request_json("GET", f"{self.url}/versions/{revision}" if revision else self.url)

    def _request_json(self, method: str, url: str, body: Any = None) -> Any:
        import httpx

        try:
            answer = self._http.request(method, url, json=body)
            decoded = answer.json()
        except httpx.HTTPError as error:
            raise Unavailable(f"the gateway does not answer: {error}", "falaj serve show says how it stands") from error
        except ValueError as error:
            raise Unavailable("what answers there is no gateway", "falaj serve url says where it is") from error
        if answer.status_code != 200:
            error_text = str(decoded.get("error", decoded))[:500] if isinstance(decoded, dict) else str(decoded)[:500]
            raise _ERROR_BY_STATUS.get(answer.status_code, Unavailable)(
                error_text, "falaj serve show says how it stands"
            )
        return decoded


def build_input_tensor(name: str, datatype: str, value: Any) -> dict[str, Any]:
    """An input of a request from nested lists."""
    shape: list[int] = []
    inner = value
    while isinstance(inner, Sequence) and not isinstance(inner, str):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    flat = _flatten_rows(value, shape, name)
    return {"name": name, "datatype": datatype, "shape": shape or [1], "data": flat}


def nest_values(data: Sequence[Any], shape: Sequence[int]) -> Any:
    """Flat values in their shape."""
    if len(shape) <= 1:
        return list(data)
    step = len(data) // shape[0] if shape[0] else 0
    return [nest_values(data[index * step : (index + 1) * step], shape[1:]) for index in range(shape[0])]


def _flatten_rows(value: Any, shape: Sequence[int], name: str) -> list[Any]:
    if not shape:
        return [value]
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != shape[0]:
        raise Invalid(f"the rows of {name[:80]!r} are not of one length", "lists in lists, all as long as the first")
    return (
        [element for part in value for element in _flatten_rows(part, shape[1:], name)]
        if len(shape) > 1
        else list(value)
    )


def _signed_in_token(client: Client) -> str:
    """The token with which we speak to the platform, where we speak to one that runs elsewhere."""
    return _client_header(client, "authorization").removeprefix("Bearer ")


def _own_token(client: Client) -> str:
    """One that is made here, where the platform is a folder of ours."""
    token: str = getattr(client, "token", str)()
    return token


def _purpose_header(client: Client) -> dict[str, str]:
    purpose = _client_header(client, "falaj-purpose") or str(vars(client).get("purpose", ""))
    return {"falaj-purpose": purpose} if purpose else {}


def _client_header(client: Client, header: str) -> str:
    http = vars(client).get("_http_client")
    return str(http.headers.get(header, "")) if http is not None else ""
