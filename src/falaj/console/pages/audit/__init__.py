"""Pages of audit."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
