"""Pages of queues."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
