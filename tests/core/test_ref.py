"""References: one text for one thing, and nothing else gets in."""

import contextlib
import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.core.ref import Ref

PARTS = st.tuples(
    st.from_regex(r"[a-z][a-z0-9-]{0,31}", fullmatch=True),
    st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True),
    st.one_of(st.just(""), st.from_regex(r"[vr][1-9][0-9]{0,17}|[a-z][a-z0-9._-]{0,62}", fullmatch=True)),
)


@given(PARTS)
def test_text_and_reference_are_one(parts: tuple[str, str, str, str]) -> None:
    ref = Ref(*parts)
    assert Ref.parse(str(ref)) == ref
    assert (ref.kind, ref.project, ref.name, ref.version) == parts
    assert Ref.parse(ref) is ref
    assert hash(Ref(*parts)) == hash(ref)


@given(PARTS, PARTS)
def test_two_references_are_equal_when_their_texts_are(
    a: tuple[str, str, str, str], b: tuple[str, str, str, str]
) -> None:
    assert (Ref(*a) == Ref(*b)) == (a == b)
    assert (Ref(*a) < Ref(*b)) == (str(Ref(*a)) < str(Ref(*b)))


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_is_refused(text: str) -> None:
    with contextlib.suppress(Invalid):
        assert str(Ref.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "pinned"),
    [
        ("dataset:fraud/t@v1", True),
        ("dataset:fraud/t@r12", True),
        ("dataset:fraud/t@v0", False),
        ("dataset:fraud/t@v01", False),
        ("dataset:fraud/t@champion", False),
        ("dataset:fraud/t@latest", False),
        ("dataset:fraud/t@version", False),
        ("dataset:fraud/t", False),
    ],
)
def test_only_a_version_or_a_revision_is_pinned(text: str, pinned: bool) -> None:
    assert Ref.parse(text).pinned is pinned


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dataset",
        "dataset:fraud",
        "dataset:/t",
        ":fraud/t",
        "dataset:fraud/",
        "dataset:fraud/t@",
        "dataset:fraud/t@@v1",
        "dataset:fraud/a/b",
        "dataset:fraud/../x",
        "dataset:../fraud/t",
        "dataset:.fraud/t",
        "dataset:fraud/.hidden",
        "dataset:fraud/a b",
        "dataset:fraud/t\n",
        "dataset:fraud/t\x00",
        "dataset:fraud/%2e%2e",
        "dataset:FRAUD/t",
        "Dataset:fraud/t",
        "dataset:fraud/t@V1",
        "dataset:fraud/t@v1;drop",
        "dataset:fraud/tést",
        "dataset:fraud/t\u200b",
        "dataset:fraud/" + "x" * 129,
        "dataset:" + "x" * 64 + "/t",
        "d" * 33 + ":fraud/t",
        "dataset:fraud/t@v" + "9" * 99,
        "file:///etc/passwd",
        "https://example.test/x",
    ],
)
def test_hostile_and_broken_texts_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        Ref.parse(text)


def test_other_versions_of_the_same_thing() -> None:
    ref = Ref.parse("model:fraud/scorer@champion")
    assert str(ref.at("v3")) == "model:fraud/scorer@v3"
    assert str(ref.bare) == "model:fraud/scorer"
    assert ref.bare.bare == ref.bare
    with pytest.raises(Invalid):
        ref.at("../v3")


def test_a_reference_does_not_change_and_can_be_copied() -> None:
    ref = Ref.parse("model:fraud/scorer@v3")
    with pytest.raises(AttributeError):
        ref.name = "other"
    assert copy.deepcopy(ref) == ref
    assert pickle.loads(pickle.dumps(ref)) == ref  # noqa: S301 - our own bytes
    assert ref != "model:fraud/scorer@v3"
    assert repr(ref) == "Ref('model:fraud/scorer@v3')"
