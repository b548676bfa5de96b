"""Names of any text and references: stable, never two in one, and back again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.track.name_mapping import (
    check_model_name,
    is_digested,
    parse_workspace,
    to_full_name,
    to_reference,
    to_shown_name,
    to_text_name,
)

TEXTS = st.text(min_size=1, max_size=60).filter(str.strip) | st.sampled_from(
    ["churn", "fraud/churn", "main/churn", "a/b/c", "x--" + "0" * 20, "x", "x--00000000000000000000/y", "../x", "a:b"]
)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("churn", "model:main/churn"),
        ("fraud/churn", "model:fraud/churn"),
        ("Churn_2.1-b", "model:main/Churn_2.1-b"),
        ("Default", "model:main/Default"),
    ],
)
def test_what_is_a_name_of_ours_stays_one(text: str, ref: str) -> None:
    assert to_reference("model", text) == Ref.parse(ref)
    assert to_text_name(Ref.parse(ref)) == text
    assert not is_digested(Ref.parse(ref))


@pytest.mark.parametrize(
    "text", ["größer", "تجربة", "a b", "main/churn", "a/b/c", "Fraud/x", "../../etc", "a" * 500, "\u202e"]
)
def test_other_texts_become_a_slug_and_a_digest(text: str) -> None:
    ref = to_reference("experiment", text)
    assert is_digested(ref)
    assert ref == to_reference("experiment", text)
    assert ".." not in str(ref)


def test_a_digested_name_is_no_way_to_meet_another() -> None:
    odd = to_reference("model", "größer")
    assert to_reference("model", odd.name) != odd


@given(TEXTS, TEXTS)
def test_two_texts_never_meet(one: str, other: str) -> None:
    assert (to_reference("model", one) == to_reference("model", other)) == (one == other)


@given(TEXTS, st.sampled_from(["main", "fraud", "risk-2"]), st.sampled_from(["main", "fraud", "risk-2"]))
def test_a_workspace_is_a_project_and_no_other_way_in(text: str, here: str, there: str) -> None:
    full = to_full_name(text, here)
    assert to_full_name(to_shown_name(full, here), here) == full
    if "/" not in text and here != there:
        assert to_full_name(text, there) != full


@pytest.mark.parametrize("text", ["", " ", "a" * 501])
def test_a_name_has_bounds(text: str) -> None:
    with pytest.raises(Invalid):
        to_full_name(text, "main")


@pytest.mark.parametrize("name", ["a/b/c", "../x", "a:b", "x/..", "fraud/", "/x", "a\nb", "..", ".", "Fraud/x"])
def test_a_model_s_name_is_one_that_clients_can_write_into_an_address(name: str) -> None:
    with pytest.raises(Invalid):
        check_model_name(name)


def test_what_a_workspace_may_be() -> None:
    assert parse_workspace("") == parse_workspace("default") == "main"
    assert parse_workspace("fraud") == "fraud"
    for odd in ("Fraud", "../x", "a/b", "x" * 64, "ü"):
        with pytest.raises(Invalid):
            parse_workspace(odd)
