"""When which model version was in production, from the log: what measures over a period sample."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from falaj.core.errand import Here
from falaj.core.errors import NotFound

PRODUCTION = "production"


def list_deployments(client: Here, models: Iterable[str], since: float, until: float) -> list[dict[str, Any]]:
    """Return each time a version of these models was in production within a period; `until` 0: beyond its end."""
    rows = []
    for model in sorted(models):
        for binding in client.catalog.history(f"{model}@{PRODUCTION}"):
            if binding.since <= until and (not binding.until or binding.until > since):
                end = binding.until if binding.until <= until else 0.0
                rows.append(
                    {"ref": str(binding.ref), "since": binding.since, "until": end, "how": binding.how,
                     "by": binding.by, "approved_by": list(binding.approved_by)}
                )  # fmt: skip
    return rows


def show_versions(client: Here, refs: Iterable[str]) -> list[Any]:
    """Return the versions that were not deleted, each once, in the order of their names."""
    versions: list[Any] = []
    for ref in sorted(set(refs)):
        with suppress(NotFound):
            versions.append(client.catalog.show(ref))
    return [version for version in versions if version.state == "live"]
