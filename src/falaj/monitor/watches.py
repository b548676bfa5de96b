"""Watches: what is watched, and what was found. One part of the desk (service.py)."""

from collections.abc import Callable
from typing import Annotated, Any

from falaj.core.context import Actor, Context
from falaj.core.errand import Here
from falaj.core.ports import Series
from falaj.core.verb import verb
from falaj.govern.keys import Keyring
from falaj.monitor.records import WatchView
from falaj.store.ledger import Ledger


class Watches:
    """What is watched."""

    def __init__(
        self,
        ledger: Ledger,
        serve: Any,
        act: Callable[[Actor, str], Here],
        series: Callable[[], Series],
        keyring: Keyring,
    ) -> None:
        self._ledger, self.serve, self.act, self._series, self._keyring = ledger, serve, act, series, keyring

    @verb()
    def list(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[WatchView, ...]:
        """List the watches you may see.

        Example:
            falaj monitor list --project fraud
        """
        return ()
