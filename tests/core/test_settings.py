"""Settings: three sources, the later one winning, every value with the place it came from."""

from typing import Any

import pytest

from falaj.core.errors import Invalid
from falaj.core.settings import Settings, list_settings, read_settings


def read(file: dict[str, Any] | None = None, env: dict[str, str] | None = None, **overrides: Any) -> Settings:
    return read_settings(file or {}, env or {}, overrides)


def test_with_nothing_said_the_defaults_hold() -> None:
    assert read() == Settings()
    assert {source for _, _, source in list_settings(read())} == {"default"}


def test_file_then_environment_then_argument() -> None:
    file = {"listen": "a:1", "zone": "ae-dubai", "home": "/f"}
    settings = read(file, {"FALAJ_ZONE": "eu-west", "FALAJ_HOME": "/e"}, home="/x")
    assert (settings.listen, settings.zone, settings.home) == ("a:1", "eu-west", "/x")
    sources = {path: source for path, _, source in list_settings(settings)}
    assert (sources["listen"], sources["zone"], sources["home"]) == ("falaj.toml", "environment", "argument")
    assert sources["store"] == "default"


def test_tables_and_their_names_in_the_environment() -> None:
    settings = read(
        {"tls": {"cert": "c.pem"}, "oidc": {"roles": {"ml": "data-scientist"}}}, {"FALAJ_TLS_MUTUAL": "true"}
    )
    assert (settings.tls.cert, settings.tls.mutual) == ("c.pem", True)
    assert settings.oidc.roles == {"ml": "data-scientist"}
    assert read(env={"FALAJ_OIDC_ROLES": "ml=data-scientist, ops=operator"}).oidc.roles["ops"] == "operator"


def test_an_argument_that_is_none_says_nothing() -> None:
    assert read({"zone": "a"}, zone=None).zone == "a"


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("hosts", "a, b,,", ("a", "b")),
        ("seal_s", "2", 2.0),
        ("limits.burst", "7", 7),
        ("tls.mutual", "YES", True),
        ("tls.mutual", "0", False),
    ],
)
def test_texts_become_what_the_setting_is(path: str, text: str, value: object) -> None:
    found: Any = read(env={"FALAJ_" + path.upper().replace(".", "_"): text})
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("file", "env"),
    [
        ({"colour": "red"}, {}),
        ({"tls": {"colour": "red"}}, {}),
        ({"tls": "c.pem"}, {}),
        ({"limits": {"burst": "many"}}, {}),
        ({"tls": {"mutual": 1}}, {}),
        ({"tls": {"mutual": "perhaps"}}, {}),
        ({"hosts": 3}, {}),
        ({"oidc": {"roles": "no pairs"}}, {}),
        ({}, {"FALAJ_SEAL_S": "soon"}),
        ({"sources": {"x": "y"}}, {}),
    ],
)
def test_a_wrong_setting_is_named(file: dict[str, Any], env: dict[str, str]) -> None:
    with pytest.raises(Invalid) as refused:
        read(file, env)
    assert "sets" in refused.value.message
    assert refused.value.hint


def test_a_variable_of_another_program_is_left_alone() -> None:
    assert read(env={"FALAJ_UNHEARD_OF": "x", "HOME": "/h"}) == Settings()


def test_home_is_filled_in() -> None:
    assert Settings(home="/x").at("sqlite:{home}/ledger.db") == "sqlite:/x/ledger.db"


def test_every_setting_is_listed_once() -> None:
    paths = [path for path, _, _ in list_settings(Settings())]
    assert len(paths) == len(set(paths))
    assert {"home", "zone", "regimes", "tls.mutual", "limits.body_bytes"} <= set(paths)
    assert "sources" not in paths
