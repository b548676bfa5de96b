"""A walk through every page of the console: both languages and themes, the rules of accessibility, nothing broken."""

from collections.abc import Callable

import pytest

from falaj.console.pages import SECTIONS, list_routes, load_routes
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
    assert [room for room in SECTIONS if not load_routes(room)] == []
    assert [route.pattern for route in list_routes() if not route.walk] == []


@pytest.mark.parametrize("room", SECTIONS)
def test_a_room(tabs: Callable[..., Tab], room: str) -> None:
    """Each of its pages once, in one look or the other."""
    walked = Walked()
    for number, route in enumerate(load_routes(room)):
        lang, theme = LOOKS[number % 2]
        tab, path = tabs(WHO.get(room, "amal"), lang, theme), route.walk[0]
        walked.note(f"{path} ({lang})", look_at(tab, path, lang, PICTURES / f"{room}-{number}-{lang}-{theme}.png"))
        assert route.room == room or not path
    assert not walked.wrong, str(walked)


@pytest.mark.slow
@pytest.mark.parametrize(("lang", "theme"), [*LOOKS, *OTHERS])
@pytest.mark.parametrize("room", SECTIONS)
def test_a_room_in_every_look_and_on_a_phone(tabs: Callable[..., Tab], room: str, lang: str, theme: str) -> None:
    walked = Walked()
    for number, (_, path) in enumerate(examples(room)):
        person, name = WHO.get(room, "amal"), f"{room}-{number}-{lang}-{theme}"
        walked.note(path, look_at(tabs(person, lang, theme), path, lang, PICTURES / "all" / f"{name}.png"))
        phone = tabs(person, lang, theme, PHONE)
        walked.note(f"{path} on a phone", look_at(phone, path, lang, PICTURES / "all" / f"{name}-phone.png"))
    assert not walked.wrong, str(walked)
