"""Pages of people."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
