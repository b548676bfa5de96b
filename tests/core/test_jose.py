"""Reading signed tokens: what has the shape of one, what is refused before any signature is looked at."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Unauthenticated
from falaj.core.jwt_claims import check_token_times, is_signed_token, list_audiences, read_text_claim, read_token

plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@given(st.dictionaries(st.text(max_size=8), plain, max_size=5))
def test_what_an_issuer_writes_is_read_as_it_is(claims: dict[str, object]) -> None:
    token = f"{part({'alg': 'EdDSA', 'kid': 'k'})}.{part(claims)}.c2ln"
    assert is_signed_token(token)
    said = read_token(token, ("EdDSA",))
    assert said.claims == claims
    with pytest.raises(Unauthenticated):
        read_token(token, ("RS256",))


@given(st.text(), st.text(), st.text())
def test_any_other_text_is_refused_and_breaks_nothing(a: str, b: str, c: str) -> None:
    for token in (a, f"{a}.{b}", f"{a}.{b}.{c}", f"{part({'alg': 'EdDSA'})}.{b}.{c}"):
        with pytest.raises(Unauthenticated):
            read_token(token, ("EdDSA",))


@pytest.mark.parametrize("name", ["jwk", "jku", "x5u", "x5c", "crit", "b64", "zip", "enc", "anything"])
def test_a_header_says_algorithm_key_id_and_type_and_no_more(name: str) -> None:
    with pytest.raises(Unauthenticated, match="header"):
        read_token(f"{part({'alg': 'EdDSA', name: 1})}.{part({})}.c2ln", ("EdDSA",))


@pytest.mark.parametrize(
    ("claims", "now", "alive"),
    [
        ({"iat": 100, "exp": 200}, 199.9, True),
        ({"iat": 100, "exp": 200}, 200, False),
        ({"iat": 100, "exp": 200, "nbf": 160}, 100, True),
        ({"iat": 100, "exp": 200, "nbf": 161}, 100, False),
        ({"iat": 160, "exp": 200}, 100, True),
        ({"iat": 161, "exp": 200}, 100, False),
        ({"iat": 100, "exp": 400}, 150, True),
        ({"iat": 100, "exp": 401}, 150, False),
        ({"iat": 100}, 150, False),
        ({"exp": 200}, 150, False),
        ({"iat": "100", "exp": 200}, 150, False),
        ({"iat": False, "exp": 200}, 150, False),
        ({"iat": -1, "exp": 200}, 150, False),
        ({}, 150, False),
    ],
)
def test_times(claims: dict[str, object], now: float, alive: bool) -> None:
    if alive:
        check_token_times(claims, now, 300)
    else:
        with pytest.raises(Unauthenticated):
            check_token_times(claims, now, 300)


@pytest.mark.parametrize(
    ("aud", "found"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), (None, ()), ("", ()), ([1, "a", None], ("a",)), ({}, ())],
)
def test_audiences(aud: object, found: tuple[str, ...]) -> None:
    assert list_audiences({"aud": aud}) == found


@pytest.mark.parametrize("value", [None, 1, "", "x" * 513, "a\x00b", ["a"]])
def test_a_text_claim_is_a_text(value: object) -> None:
    assert read_text_claim({"sub": "alice"}, "sub") == "alice"
    with pytest.raises(Unauthenticated):
        read_text_claim({"sub": value}, "sub")
