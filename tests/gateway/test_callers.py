"""By what callers are remembered: nothing that could be shown again."""

from falaj.gateway.callers import key_of

TOKEN = b"Bearer falaj_0123456789abcdef0123456789abcdef"


def test_a_caller_is_known_by_what_was_shown_and_asked_for_and_the_token_is_not_kept() -> None:
    key = key_of({b"falaj-purpose": b"fraud"}, TOKEN, "fraud.score")
    assert key == key_of({b"falaj-purpose": b"fraud", b"other": b"1"}, TOKEN, "fraud.score")
    others = [
        key_of({}, TOKEN, "fraud.score"), key_of({b"falaj-purpose": b"fraud"}, TOKEN[:-1], "fraud.score"),
        key_of({b"falaj-purpose": b"fraud"}, TOKEN, "fraud.other"), key_of({b"falaj-purpose": b"fraud"}, b"", ""),
    ]  # fmt: skip
    assert len({key, *others}) == 5
    assert len(key[0]) == 16
    assert b"falaj_" not in key[0]
