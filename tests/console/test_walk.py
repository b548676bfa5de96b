"""A walk through every page of the console: both languages and themes, the rules of accessibility, nothing broken."""

from collections.abc import Callable

import pytest

from falaj.console.pages import ROOMS, every_route, routes
from tests.console.ground import Ground
from tests.console.walk import PICTURES, WHO, Walked, examples, look_at
from tests.servers.browser import PHONE, Chromium, Tab

LOOKS = (("en", "light"), ("ar", "dark"))
OTHERS = (("en", "dark"), ("ar", "light"))


@pytest.fixture(scope="module")
def tabs(platform: Ground, chromium: Chromium) -> Callable[..., Tab]:
    """One window a person and look; its pages are loaded one after another."""
    made: dict[tuple[object, ...], Tab] = {}

    def tab(person: str, *look: object) -> Tab:
        if (person, *look) not in made:
            made[person, *look] = platform.tab(chromium, person, *look)  # type: ignore[arg-type]
        return made[person, *look]

    return tab


def test_every_page_can_be_walked_to() -> None:
    assert [room for room in ROOMS if not routes(room)] == []
    assert [route.pattern for route in every_route() if not route.walk] == []


@pytest.mark.parametrize(("lang", "theme"), LOOKS)
@pytest.mark.parametrize("room", ROOMS)
def test_a_room(tabs: Callable[..., Tab], room: str, lang: str, theme: str) -> None:
    walked = Walked()
    for number, (route, path) in enumerate(examples(room)):
        file = PICTURES / f"{room}-{number}-{lang}-{theme}.png"
        walked.note(path, look_at(tabs(WHO.get(room, "amal"), lang, theme), path, lang, file))
        assert route.room == room or not path
    assert not walked.wrong, str(walked)


@pytest.mark.slow
@pytest.mark.parametrize(("lang", "theme"), OTHERS)
@pytest.mark.parametrize("room", ROOMS)
def test_a_room_in_other_looks_and_on_a_phone(tabs: Callable[..., Tab], room: str, lang: str, theme: str) -> None:
    walked = Walked()
    for number, (_, path) in enumerate(examples(room)):
        person = WHO.get(room, "amal")
        walked.note(
            path, look_at(tabs(person, lang, theme), path, lang, PICTURES / f"{room}-{number}-{lang}-{theme}.png")
        )
        phone = tabs(person, lang, theme, PHONE)
        phone.forget()
        phone.open(f"/console/{path}".rstrip("/"))
        phone.keep(PICTURES / f"{room}-{number}-{lang}-{theme}-phone.png")
        walked.note(f"{path} on a phone", [*phone.wrong(), *phone.axe()])
    assert not walked.wrong, str(walked)
