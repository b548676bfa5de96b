"""Pages of jobs."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
