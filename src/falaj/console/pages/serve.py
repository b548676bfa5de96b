"""Pages of serve."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
