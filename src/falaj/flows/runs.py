"""Flows and their runs. One part of the desk (service.py)."""

from collections.abc import Callable
from typing import Annotated, Any

from falaj.core.context import Actor, Context
from falaj.core.errand import Here
from falaj.core.settings import Settings
from falaj.core.verb import verb
from falaj.flows.records import FlowView
from falaj.govern.keys import Keyring
from falaj.jobs.service import Jobs
from falaj.store.ledger import Ledger


class Runs:
    """Flows and their runs."""

    def __init__(
        self, ledger: Ledger, jobs: Jobs, act: Callable[[Actor, str], Here], keyring: Keyring, settings: Settings
    ) -> None:
        self._ledger, self.jobs, self.act, self._keyring, self._settings = ledger, jobs, act, keyring, settings
        self._secret: Callable[[Context, str], bytes] | None = None

    @verb()
    def list(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[FlowView, ...]:
        """List the flows you may see.

        Example:
            falaj flows list --project fraud
        """
        return ()

    def reveals(self, secret: Callable[[Context, str], bytes]) -> Any:
        """How secrets are had by reference; said once, by whoever assembles the house."""
        self._secret = secret
        return self
