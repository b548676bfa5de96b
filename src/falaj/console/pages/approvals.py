"""Pages of approvals."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
