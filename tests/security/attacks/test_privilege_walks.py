"""No sequence of operations lets a person receive data that their tenant, role, project, purpose or place forbids."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.security.privilege_walk import ACTIONS, PURPOSES, ROLE_OF, TENANTS, Planted, Principal, Walk

STEPS = st.lists(
    st.tuples(
        st.builds(Principal, st.sampled_from(TENANTS), st.sampled_from(sorted(ROLE_OF)), st.sampled_from(PURPOSES)),
        st.sampled_from(ACTIONS),
        st.integers(0, 10_000),
    ),
    min_size=5,
    max_size=25,
)


def run_walk(planted: Planted, folder: Path, steps: list[tuple[Principal, str, int]]) -> int:
    walk = Walk(planted, folder)
    try:
        leaks = [leak for step in steps for leak in walk.take_step(*step)]
        assert not leaks, "\n".join(leaks)
        return walk.accepted
    finally:
        walk.close()


@pytest.mark.timeout(7200)  # all of them take half an hour; quick runs draw few
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS)
def test_random_walk_leaks_no_canary(planted: Planted, tmp_path: Path, steps: list[tuple[Principal, str, int]]) -> None:
    run_walk(planted, tmp_path / "copy", steps)


def test_every_operation_by_every_person_leaks_no_canary(planted: Planted, tmp_path: Path) -> None:
    """Each operation once by each person of one tenant; enough of them succeed for the search to mean something."""
    steps = [
        (Principal("bank", name, "fraud"), action, seed)
        for seed, name in enumerate(sorted(ROLE_OF))
        for action in ACTIONS
        if not action.startswith("people.") or action in ("people.list", "people.show", "people.whoami")
    ]
    assert run_walk(planted, tmp_path / "copy", steps) > 200


def test_readers_do_receive_their_canaries(planted: Planted, tmp_path: Path) -> None:
    """The search finds a canary where one may be read, so that a silent walk means no leak."""
    walk = Walk(planted, tmp_path / "copy")
    try:
        received, _ = walk._call(
            Principal("bank", "scientist", "fraud"), "store", "get", {"name": "blob:fraud/passport"}
        )
        assert "cnrybanklabelledblobzq" in received
    finally:
        walk.close()
