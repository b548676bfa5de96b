"""Pages of flows."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
