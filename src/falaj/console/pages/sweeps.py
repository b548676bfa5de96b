"""Pages of sweeps."""

from falaj.console.page import Route

ROUTES: tuple[Route, ...] = ()
