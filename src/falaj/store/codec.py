"""The one JSON coding of what verbs take and give: references as text, labels as fields, records as objects."""

from typing import Any

import msgspec

from falaj.core.errors import Invalid
from falaj.core.ref import Ref


def to_json(value: Any) -> bytes:
    """JSON of any value a verb may give."""
    return _ENCODER.encode(value)


def to_stable_json(value: Any) -> bytes:
    """The same with sets and keys in order, for whatever is hashed or compared."""
    return _STABLE.encode(value)


def to_plain(value: Any) -> Any:
    """The same as plain dicts, lists, texts and numbers."""
    return msgspec.to_builtins(value, enc_hook=_encode_custom)


def from_json(kind: Any, data: bytes | str) -> Any:
    """The value of type `kind` whose JSON this is, or Invalid."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_decode_custom)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(
            f"the JSON does not fit: {error}", "compare it with the verb's schema in /v1/openapi.json"
        ) from error


def from_plain(kind: Any, value: Any) -> Any:
    """The value of type `kind` whose plain form this is, or Invalid."""
    try:
        return msgspec.convert(value, kind, dec_hook=_decode_custom)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"the value does not fit: {error}", "compare it with the verb's schema in /v1/openapi.json"
        ) from error


def _encode_custom(value: Any) -> Any:
    if isinstance(value, Ref):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _decode_custom(kind: type, value: Any) -> Any:
    if kind is Ref:
        if not isinstance(value, str):
            raise Invalid(f"{value!r:.60} is no reference", "write kind:project/name or kind:project/name@version")
        return Ref.parse(value)
    raise NotImplementedError(f"{kind.__name__} has no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_custom)
_STABLE = msgspec.json.Encoder(enc_hook=_encode_custom, order="deterministic")
