"""Pages of clusters."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
