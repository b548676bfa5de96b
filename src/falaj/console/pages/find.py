"""Pages of find."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
