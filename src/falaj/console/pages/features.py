"""Pages of features."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
