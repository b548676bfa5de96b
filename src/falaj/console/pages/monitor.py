"""Pages of monitor."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
