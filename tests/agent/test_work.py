"""Tokens of attempts in a zone: the same for an order that comes twice, of no use elsewhere, and no harm when torn."""

from pathlib import Path

from falaj.agent.agent_commands import TokenMap


def test_an_order_that_comes_twice_gives_the_same_token_though_nothing_was_written(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    first = TokenMap(path).local("a-1", "real")
    assert not path.exists(), "the attempt does not wait for it"
    again = TokenMap(path)
    assert again.local("a-1", "real") == first
    assert again.local("a-2", "real") != first
    assert (tmp_path / "door.key").stat().st_mode & 0o777 == 0o600


def test_what_was_kept_outlives_the_agent(tmp_path: Path) -> None:
    tokens = TokenMap(tmp_path / "tokens.json")
    mine = tokens.local("a-1", "real")
    tokens.keep()
    later = TokenMap(tmp_path / "tokens.json")
    assert later.real(mine) == "real"
    assert later.real("another") == "another"
    later.forget("a-1")
    assert TokenMap(tmp_path / "tokens.json").real(mine) == mine


def test_tokens_of_two_agents_do_not_cross(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (TokenMap(tmp_path / name / "tokens.json").local("a-1", "real") for name in ("one", "two"))
    assert one != two


def test_a_torn_file_is_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_bytes(b'{"a-1": {"loc')
    assert TokenMap(tmp_path / "tokens.json").real("fjz-x") == "fjz-x"
