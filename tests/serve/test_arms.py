"""Arms: shares kept to the slot, the same arm for the same key, and few keys moved when shares change."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.ref import Ref
from falaj.serve.records import EndpointRoute, EndpointRules
from falaj.serve.traffic_split import SLOT_COUNT, get_traffic_split, pick_shadow_revision

KEYS = [f"customer-{number}".encode() for number in range(20_000)]


def route(shares: dict[str, tuple[int, float]], name: str = "fraud.score") -> EndpointRoute:
    """A route with these arms."""
    return EndpointRoute(
        "bank",
        Ref.parse("endpoint:fraud/score"),
        name,
        "ae-dubai",
        "",
        shares,
        None,
        frozenset(),
        (),
        "",
        EndpointRules(),
    )


def split(canary: float) -> EndpointRoute:
    """A canary with this share."""
    return route({"base": (1, 1 - canary), "canary": (2, canary)})


def arm_of(route: EndpointRoute, key: bytes) -> str:
    return get_traffic_split(route).pick(key)[0]


@given(st.floats(0.0001, 0.9999))
@settings(deadline=None, max_examples=50)
def test_an_arm_has_its_share(share: float) -> None:
    arms = get_traffic_split(split(share))
    assert arms._slots.count(arms.names.index("canary")) / SLOT_COUNT == pytest.approx(share, abs=1.5 / SLOT_COUNT)
    assert len(arms._slots) == SLOT_COUNT


def test_keys_and_chance_fall_as_the_shares_say() -> None:
    arms = get_traffic_split(split(0.1))
    for found in ([arms.pick(key)[0] for key in KEYS], [arms.pick(None)[0] for _ in KEYS]):
        assert found.count("canary") / len(KEYS) == pytest.approx(0.1, abs=0.015)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@settings(deadline=None, max_examples=30)
def test_a_canary_that_grows_gives_no_key_back(one: float, other: float) -> None:
    small, large = sorted((one, other))
    before, after = split(small), split(large)
    moved = [key for key in KEYS[:3000] if arm_of(before, key) != arm_of(after, key)]
    assert all((arm_of(before, key), arm_of(after, key)) == ("base", "canary") for key in moved)


@given(st.lists(st.floats(0.02, 0.2), min_size=3, max_size=3), st.floats(0.0, 0.2))
@settings(deadline=None, max_examples=30)
def test_of_many_arms_few_keys_move_that_need_not(shares: list[float], more: float) -> None:
    def of(first: float) -> EndpointRoute:
        given_ = {"a": first, "b": shares[1], "c": shares[2]}
        return route(
            {"base": (1, 1 - sum(given_.values())), **{k: (i + 2, v) for i, (k, v) in enumerate(given_.items())}}
        )

    before, after = of(shares[0]), of(shares[0] + more)
    moved = np.mean([arm_of(before, key) != arm_of(after, key) for key in KEYS[:5000]])
    assert moved <= more * 1.7 + 0.03


def test_groups_of_two_trials_have_nothing_to_do_with_each_other() -> None:
    first, second = split(0.5), route({"base": (2, 0.5), "canary": (3, 0.5)})
    again = np.mean([arm_of(first, key) == arm_of(second, key) for key in KEYS])
    assert again == pytest.approx(0.5, abs=0.03)


def test_an_arm_without_share_is_never_asked_and_the_only_one_always() -> None:
    assert {arm_of(split(0.0), key) for key in KEYS[:2000]} == {"base"}
    assert {arm_of(split(1.0), key) for key in KEYS[:2000]} == {"canary"}
    thirds = route({"base": (1, 0.0), "a": (2, 1 / 3), "b": (3, 1 / 3), "c": (4, 1 / 3)})
    assert {arm_of(thirds, key) for key in KEYS} == {"a", "b", "c"}


def test_the_same_shares_give_the_same_object() -> None:
    assert get_traffic_split(split(0.1)) is get_traffic_split(split(0.1))


def test_copies_for_a_shadow() -> None:
    assert pick_shadow_revision(split(0.1)) == 0
    assert pick_shadow_revision(replace(split(0.0), shadow=(7, 1.0))) == 7
    assert pick_shadow_revision(replace(split(0.0), shadow=(7, 0.0))) == 0
