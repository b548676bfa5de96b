"""Arguments on the wire: what fits, what does not, and how deep anything may go."""

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.api.argument_decoding import (
    MAX_ARGUMENTS_HEADER_BYTES,
    ArgumentDecoder,
    check_json_depth,
    encode_arguments_header,
)
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.operation import list_operations
from falaj.core.ref import Ref
from tests.api.small import Echo, Inner

SAY = ArgumentDecoder("echo", list_operations(Echo)["say"])
PUT = ArgumentDecoder("echo", list_operations(Echo)["put"])


def said(**arguments: Any) -> dict[str, Any]:
    return SAY.decode(json.dumps(arguments).encode())


def test_every_type_is_read() -> None:
    found = said(
        name="dataset:a/b@v3",
        text="hé",
        number=-(2**63),
        share=1,
        flag=True,
        many=["x", "y"],
        refs=["dataset:a/b", "model:c/d@champion"],
        pairs={"k": "v"},
        label={"classification": 2, "regimes": ["AE-PDPL"]},
        inner={"count": 3, "about": "dataset:a/c"},
    )
    assert found == {
        "name": Ref.parse("dataset:a/b@v3"),
        "text": "hé",
        "number": -(2**63),
        "share": 1.0,
        "flag": True,
        "many": ("x", "y"),
        "refs": (Ref.parse("dataset:a/b"), Ref.parse("model:c/d@champion")),
        "pairs": {"k": "v"},
        "label": Label(frozenset({"AE-PDPL"}), 2),
        "inner": Inner(3, Ref.parse("dataset:a/c")),
    }


def test_a_label_may_be_written_as_people_do_and_none_is_none() -> None:
    assert said(name="dataset:a/b", label="AE-PDPL,sensitive")["label"] == Label(frozenset({"AE-PDPL"}), 2)
    assert said(name="dataset:a/b", label=None, pairs=None, inner=None) == {
        "name": Ref.parse("dataset:a/b"),
        "label": None,
        "pairs": None,
        "inner": None,
    }


def test_what_is_not_given_is_left_to_the_verb() -> None:
    assert said(name="dataset:a/b") == {"name": Ref.parse("dataset:a/b")}
    assert ArgumentDecoder("echo", list_operations(Echo)["nothing"]).decode(b"") == {}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "'name'"),
        ({"name": "dataset:a/b", "colour": 1}, "'colour'"),
        ({"name": "dataset:a/b", "number": "3"}, "$.number"),
        ({"name": "dataset:a/b", "number": 3.5}, "$.number"),
        ({"name": "dataset:a/b", "number": True}, "$.number"),
        ({"name": "dataset:a/b", "number": 2**63}, "$.number"),
        ({"name": "dataset:a/b", "flag": "yes"}, "$.flag"),
        ({"name": "dataset:a/b", "many": "abc"}, "$.many"),
        ({"name": "dataset:a/b", "many": [1]}, "$.many"),
        ({"name": "dataset:a/b", "pairs": {"k": 1}}, "$.pairs"),
        ({"name": "dataset:a/b", "inner": {}}, "$.inner"),
        ({"name": "dataset:a/b", "inner": {"count": 1, "extra": 2}}, "extra"),
        ({"name": "dataset:a/b", "label": {"clas": 1}}, "clas"),
        ({"name": "dataset:a/b", "label": {"classification": 9}}, "9"),
        ({"name": 3}, "reference"),
        ({"name": "../../etc/passwd"}, "reference"),
        ({"name": "dataset:a/b\x00"}, "reference"),
        ({"name": "dataset:" + "a" * 4096 + "/b"}, "reference"),
    ],
)
def test_what_does_not_fit_is_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid) as caught:
        said(**arguments)
    assert named in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"\xff",
        b'{"name": NaN}',
        b'{"share": 1e999, "name": "dataset:a/b"}',
        b'{"name":"dataset:a/b"}x',
    ],
)
def test_what_is_no_json_object_is_invalid(body: bytes) -> None:
    with pytest.raises(Invalid):
        SAY.decode(body)


@given(st.binary(max_size=300))
def test_no_bytes_do_anything_but_fit_or_be_invalid(body: bytes) -> None:
    for decode in (SAY.decode, lambda data: PUT.decode_header(data.decode("latin-1"))):
        with suppress(Invalid):
            check_json_depth(body, 32)
            decode(body)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(alphabet='[]{}"\\ax'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{"\\'), inner),
        max_leaves=60,
    ),
    st.integers(1, 6),
)
def test_depth_is_what_a_parser_would_count(value: Any, limit: int) -> None:
    def depth(part: Any) -> int:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    body = json.dumps(value).encode()
    if depth(value) > limit:
        with pytest.raises(Invalid):
            check_json_depth(body, limit)
    else:
        check_json_depth(body, limit)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 4_000_000,
        b'{"a":' * 800_000,
        b"[]" * 2_000_000,
        b'"' + b"\\" * 4_000_000,
        b'["' * 1_000_000,
        b"[[]," * 1_000_000,
    ],
)
def test_hostile_bodies_are_judged_quickly(body: bytes) -> None:
    try:
        check_json_depth(body, 32)
        SAY.decode(body)
    except Invalid:
        return
    raise AssertionError("it was accepted")


def test_the_header_carries_the_same_arguments() -> None:
    assert PUT.decode_header(encode_arguments_header(b'{"name":"dataset:a/b"}')) == {"name": Ref.parse("dataset:a/b")}
    padded = base64.urlsafe_b64encode(b'{"name": "dataset:a/b"}').decode()
    assert PUT.decode_header(padded) == {"name": Ref.parse("dataset:a/b")}
    for bad in ("!!", "e30", "a" * (MAX_ARGUMENTS_HEADER_BYTES + 1), "e30=x"):
        with pytest.raises(Invalid):
            PUT.decode_header(bad)
