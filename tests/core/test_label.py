"""Labels: the laws of the join, and reading what people write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.core.label import ANY_VALUE, CLASS_NAMES, Label, join_labels

WORDS = st.frozensets(st.sampled_from(["a", "b", "c", "*"]), max_size=3)
LABELS = st.builds(
    Label,
    regimes=WORDS,
    classification=st.integers(0, 3),
    categories=WORDS,
    purposes=WORDS,
    origin=WORDS,
    holds=WORDS,
    min_retain_s=st.integers(0, 3),
    max_retain_s=st.one_of(st.none(), st.integers(0, 3)),
)


@given(LABELS, LABELS)
def test_join_is_commutative(a: Label, b: Label) -> None:
    assert a.join(b) == b.join(a)


@given(LABELS, LABELS, LABELS)
def test_join_is_associative(a: Label, b: Label, c: Label) -> None:
    assert a.join(b).join(c) == a.join(b.join(c))


@given(LABELS)
def test_join_is_idempotent_and_the_open_label_changes_nothing(a: Label) -> None:
    assert a.join(a) == a
    assert a.join(Label()) == a


@given(LABELS, LABELS)
def test_join_covers_both_sides(a: Label, b: Label) -> None:
    assert a.join(b).covers(a)
    assert a.join(b).covers(b)


@given(LABELS, LABELS, LABELS)
def test_join_is_monotone(a: Label, b: Label, c: Label) -> None:
    if a.covers(b):
        assert a.join(c).covers(b.join(c))


@given(LABELS, LABELS)
def test_the_join_of_one_is_that_one_and_of_none_the_open_label(a: Label, b: Label) -> None:
    assert join_labels([a]) == Label().join(a) == a
    assert join_labels(iter([a, b])) == a.join(b)
    assert join_labels([]) == Label()


@given(LABELS, LABELS)
def test_the_join_allows_a_purpose_only_when_both_do(a: Label, b: Label) -> None:
    for purpose in ("a", "b", "x", ""):
        assert a.join(b).allows(purpose) == (a.allows(purpose) and b.allows(purpose))


@given(st.lists(LABELS, max_size=4))
def test_a_result_carries_all_its_inputs(labels: list[Label]) -> None:
    joined = join_labels(labels)
    assert all(joined.covers(label) for label in labels)
    assert joined.classification == max((label.classification for label in labels), default=0)


@given(LABELS, LABELS)
def test_the_digest_tells_labels_apart(a: Label, b: Label) -> None:
    assert (a.digest == b.digest) == (a == b)


@given(LABELS)
def test_plain_fields_come_back(a: Label) -> None:
    assert Label.parse(a.to_dict()) == a
    assert Label.parse(a) is a


def test_how_long_it_is_kept_is_written_and_read() -> None:
    label = Label.parse("sensitive,min-retain=90d,max-retain=87601h")
    assert (label.min_retain_s, label.max_retain_s) == (90 * 86_400, 87_601 * 3600)
    assert label.words == "sensitive,min-retain=90d,max-retain=87601h"
    assert Label.parse("min-retain=0s,max-retain=0s") == Label(max_retain_s=0)
    for wrong in ("90", "d", "-1d", "1.5d", "9w", "", "9" * 10 + "d"):
        with pytest.raises(Invalid, match="no part of a label"):
            Label.parse(f"min-retain={wrong}")


@given(st.integers(0, 10**8), st.one_of(st.none(), st.integers(0, 10**8)))
def test_what_is_kept_how_long_comes_back(least: int, most: int | None) -> None:
    label = Label(min_retain_s=least, max_retain_s=most)
    assert Label.parse(label.words) == label


def test_as_people_write_it() -> None:
    label = Label.parse("AE-PDPL, AE-HEALTH,sensitive,purpose=fraud,purpose=care,category=health,origin=AE,hold=case-7")
    assert label == Label(
        regimes=frozenset({"AE-PDPL", "AE-HEALTH"}),
        classification=2,
        categories=frozenset({"health"}),
        purposes=frozenset({"fraud", "care"}),
        origin=frozenset({"AE"}),
        holds=frozenset({"case-7"}),
    )
    assert Label.parse("") == Label()
    assert Label.parse("NONE").purposes == ANY_VALUE
    assert [Label.parse(name.upper()).classification for name in CLASS_NAMES] == [0, 1, 2, 3]


@pytest.mark.parametrize("text", ["pdpl", "sensitiv", "purpose=", "=x", "colour=red", "AE-PDPL;secret", "a=b=c"])
def test_what_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        Label.parse(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"classification": 4},
        {"classification": -1},
        {"classification": "2"},
        {"classification": True},
        {"classification": 1.5},
        {"regimes": "AE-PDPL"},
        {"regimes": [1]},
        {"regimes": None},
        {"min_retain_s": "9"},
        {"min_retain_s": -1},
        {"max_retain_s": 0.5},
        {"colour": "red"},
    ],
)
def test_fields_of_the_wrong_kind_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        Label.parse(fields)
