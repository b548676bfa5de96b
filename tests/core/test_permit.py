"""Permits: one act, once, for a minute, and only as it was signed."""

import threading
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Denied
from falaj.core.transfer_permits import PERMIT_LIFETIME_S, PermitAuthority, TransferPermit

NOW = 1_800_000_000.0
KEY = b"k" * 32


def issue(desk: PermitAuthority) -> TransferPermit:
    return desk.issue("write", "dataset:a/b", "bank", "home", "eu-west", label="l", policy="p", now=NOW)


def redeem(desk: PermitAuthority, permit: TransferPermit, now: float = NOW, **act: str) -> None:
    wanted = {"op": "write", "thing": "dataset:a/b", "zone": "eu-west", **act}
    desk.redeem(permit, wanted["op"], wanted["thing"], wanted["zone"], now)


def test_a_permit_opens_once() -> None:
    desk = PermitAuthority(KEY)
    permit = issue(desk)
    redeem(desk, permit)
    with pytest.raises(Denied, match="used before"):
        redeem(desk, permit)


@pytest.mark.parametrize("act", [{"op": "read"}, {"thing": "dataset:a/c"}, {"zone": "home"}])
def test_a_permit_is_for_one_act(act: dict[str, str]) -> None:
    desk = PermitAuthority(KEY)
    permit = issue(desk)
    with pytest.raises(Denied, match="the permit is for"):
        redeem(desk, permit, **act)
    redeem(desk, permit)


@pytest.mark.parametrize("field", [f.name for f in fields(TransferPermit)])
def test_no_field_can_be_altered(field: str) -> None:
    desk = PermitAuthority(KEY)
    permit = issue(desk)
    value = permit.expires + 1 if field == "expires" else getattr(permit, field) + "x"
    with pytest.raises(Denied, match="forged or altered"):
        redeem(desk, replace(permit, **{field: value}))


@pytest.mark.parametrize("mac", ["", "0" * 64, "é", "\ud800"])
def test_a_made_up_signature_is_refused(mac: str) -> None:
    desk = PermitAuthority(KEY)
    with pytest.raises(Denied, match="forged"):
        redeem(desk, replace(issue(desk), mac=mac))


def test_another_house_signs_in_vain() -> None:
    with pytest.raises(Denied, match="forged"):
        redeem(PermitAuthority(KEY), issue(PermitAuthority(b"x" * 32)))


def test_a_permit_lives_a_minute() -> None:
    assert PERMIT_LIFETIME_S <= 60
    desk = PermitAuthority(KEY)
    redeem(desk, issue(desk), NOW + PERMIT_LIFETIME_S - 0.001)
    with pytest.raises(Denied, match="expired"):
        redeem(desk, issue(desk), NOW + PERMIT_LIFETIME_S)
    with pytest.raises(Denied, match="expired"):
        redeem(desk, issue(desk), float("nan"))


def test_forgetting_spent_permits_never_opens_one_again() -> None:
    desk = PermitAuthority(KEY)
    first = issue(desk)
    redeem(desk, first)
    for _ in range(5000):
        redeem(desk, issue(desk))
    with pytest.raises(Denied):
        redeem(desk, first)
    with pytest.raises(Denied):
        redeem(desk, first, NOW + PERMIT_LIFETIME_S)


def test_of_many_who_race_one_gets_in() -> None:
    desk = PermitAuthority(KEY)
    permit = issue(desk)
    opened: list[int] = []
    start = threading.Barrier(8)

    def race(number: int) -> None:
        start.wait()
        try:
            redeem(desk, permit)
        except Denied:
            return
        opened.append(number)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1


PERMITS = st.builds(
    TransferPermit, *[st.text(max_size=3)] * 7, st.floats(allow_nan=False), st.text(max_size=3), st.just("")
)  # fmt: skip


@given(PERMITS, PERMITS)
def test_no_two_permits_share_a_message(a: TransferPermit, b: TransferPermit) -> None:
    assert (a.message() == b.message()) == (repr(a) == repr(b))
