"""Pages of catalog."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
