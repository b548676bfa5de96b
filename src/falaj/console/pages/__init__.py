"""The pages, room by room; a room's module is loaded with the first look at one of its pages."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from falaj.console.page import Page, Route
from falaj.core.errors import NotFound, lacking

if TYPE_CHECKING:
    from falaj.console.view import View

ROOMS = (
    "home",
    "find",
    "catalog",
    "features",
    "track",
    "sweeps",
    "jobs",
    "flows",
    "serve",
    "monitor",
    "queues",
    "clusters",
    "approvals",
    "zones",
    "policy",
    "people",
    "keys",
    "audit",
)
"""The first piece of an address, and the module of its pages."""
MAKERS = {"demo": "falaj.console.pages.home.demo"}
"""What takes several verbs in a row, at /console/make/<name>: modules whose `make(view)` gives the address to go to."""


@cache
def routes(room: str) -> tuple[Route, ...]:
    """The pages of one room."""
    try:
        found: tuple[Route, ...] = import_module(f"falaj.console.pages.{room}").ROUTES
    except ModuleNotFoundError as error:
        raise lacking(room, room, error) from error
    return found


def teller(desk: str, verb: str) -> "Callable[[View, Any, str], Page] | None":
    """How the pages of a desk tell what a verb gave (their OUTCOMES), with the address to go back to."""
    module = import_module(f"falaj.console.pages.{desk}") if desk in ROOMS else None
    found: Callable[[View, Any, str], Page] | None = getattr(module, "OUTCOMES", {}).get(verb)
    return found


def every_route() -> tuple[Route, ...]:
    """All pages there are."""
    return tuple(route for room in ROOMS for route in routes(room))


def find(pieces: list[str]) -> tuple[Route, dict[str, str]]:
    """The page at an address, and what its pieces mean."""
    room = pieces[0] if pieces else "home"
    if room in ROOMS:
        for route in routes(room):
            args = route.match(pieces)
            if args is not None:
                return route, args
    raise NotFound("there is no page at this address", "follow a link of the navigation")


def maker(name: str) -> "Callable[[View], str]":
    """What makes something of several verbs."""
    if name not in MAKERS:
        raise NotFound("there is nothing to make at this address", "load the page again")
    found: Callable[[View], str] = import_module(MAKERS[name]).make
    return found
