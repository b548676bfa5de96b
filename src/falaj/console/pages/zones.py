"""Pages of zones."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
