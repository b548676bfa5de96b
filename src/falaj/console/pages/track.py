"""Pages of track."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
