"""Pages of policy."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
