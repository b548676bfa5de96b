"""Cells: one text for one set of facts, so that a list and a direct question get the same answer."""

from hypothesis import given
from hypothesis import strategies as st

from falaj.core.label import Label
from falaj.core.policy_scope import PolicyScope

WORDS = st.sampled_from(["a", "b", 'x"y', "[", ",", ""])
CELLS = st.builds(
    PolicyScope,
    kind=WORDS,
    project=WORDS,
    zone=WORDS,
    classification=st.integers(0, 3),
    regimes=st.lists(WORDS, max_size=2).map(tuple),
    categories=st.lists(WORDS, max_size=2).map(tuple),
    restricted=st.booleans(),
)


@given(CELLS, CELLS)
def test_texts_are_equal_exactly_when_cells_are(a: PolicyScope, b: PolicyScope) -> None:
    assert (a.encode() == b.encode()) == (a == b)
    assert PolicyScope.decode(a.encode()) == a


def test_the_order_in_which_a_label_was_written_does_not_matter() -> None:
    one = PolicyScope.of("dataset", "p", "z", Label.parse("AE-PDPL,AE-HEALTH,category=x,category=y"))
    other = PolicyScope.of("dataset", "p", "z", Label.parse("category=y,AE-HEALTH,category=x,AE-PDPL"))
    assert one.encode() == other.encode()
