"""The pages, room by room; a room's module is loaded with the first look at one of its pages."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from falaj.console.page import Page, PageRoute
from falaj.core.errors import NotFound, missing_package_error

if TYPE_CHECKING:
    from falaj.console.page_view import PageView

SECTIONS = (
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
MULTI_STEP_ACTIONS = {"demo": "falaj.console.pages.home.demo"}
"""What takes several verbs in a row, at /console/make/<name>: modules whose `make(view)` gives the address to go to."""


@cache
def load_routes(section: str) -> tuple[PageRoute, ...]:
    """The pages of one room."""
    try:
        section_routes: tuple[PageRoute, ...] = import_module(f"falaj.console.pages.{section}").ROUTES
    except ModuleNotFoundError as error:
        raise missing_package_error(section, section, error) from error
    return section_routes


def find_result_renderer(service_name: str, operation_name: str) -> "Callable[[PageView, Any, str], Page] | None":
    """How the pages of a desk tell what a verb gave (their OUTCOMES), with the address to go back to."""
    module = import_module(f"falaj.console.pages.{service_name}") if service_name in SECTIONS else None
    renderer: Callable[[PageView, Any, str], Page] | None = getattr(module, "OUTCOMES", {}).get(operation_name)
    return renderer


def list_routes() -> tuple[PageRoute, ...]:
    """All pages there are."""
    return tuple(route for section in SECTIONS for route in load_routes(section))


def find_page(path_parts: list[str]) -> tuple[PageRoute, dict[str, str]]:
    """The page at an address, and what its pieces mean."""
    section = path_parts[0] if path_parts else "home"
    if section in SECTIONS:
        for route in load_routes(section):
            path_params = route.match(path_parts)
            if path_params is not None:
                return route, path_params
    raise NotFound("there is no page at this address", "follow a link of the navigation")


def find_multi_step_action(name: str) -> "Callable[[PageView], str]":
    """What makes something of several verbs."""
    if name not in MULTI_STEP_ACTIONS:
        raise NotFound("there is nothing to make at this address", "load the page again")
    run_action: Callable[[PageView], str] = import_module(MULTI_STEP_ACTIONS[name]).make
    return run_action
