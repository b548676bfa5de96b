"""Pages of keys."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
