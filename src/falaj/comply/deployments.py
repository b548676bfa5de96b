"""When which model version was in production, from the log: what measures over a period sample."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from falaj.core.client_command import Client
from falaj.core.errors import NotFound

PRODUCTION_ALIAS = "production"


def list_deployments(client: Client, models: Iterable[str], since: float, until: float) -> list[dict[str, Any]]:
    """Return each time a version of these models was in production within a period; `until` 0: beyond its end."""
    rows = []
    for model in sorted(models):
        for binding in client.catalog.history(f"{model}@{PRODUCTION_ALIAS}"):
            if binding.since <= until and (not binding.until or binding.until > since):
                ended_at = binding.until if binding.until <= until else 0.0
                rows.append(
                    {"ref": str(binding.ref), "since": binding.since, "until": ended_at, "how": binding.how,
                     "by": binding.by, "approved_by": list(binding.approved_by)}
                )  # fmt: skip
    return rows


def list_live_versions(client: Client, refs: Iterable[str]) -> list[Any]:
    """Return the versions that were not deleted, each once, in the order of their names."""
    versions: list[Any] = []
    for ref in sorted(set(refs)):
        with suppress(NotFound):
            versions.append(client.catalog.show(ref))
    return [version for version in versions if version.state == "live"]
