"""Control of many jobs from the command line: a selection by flags, shown first and carried out with --yes."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar, cast

from falaj.core.client_command import Client, add_flags, client_command
from falaj.core.errors import Invalid
from falaj.jobs.control import MAX_SELECTED, JobSelector, Selection

F = TypeVar("F", bound=Callable[..., Any])
_CONDITIONS = {
    "queue": Annotated[str | None, "of one queue, with all below it"],
    "state": Annotated[str | None, "waiting, held, starting, running or stopping"],
    "older": Annotated[str | None, "submitted longer ago than this: 30m, 1h, 7d"],
    "person": Annotated[str | None, "of one person"],
    "project": Annotated[str | None, "of one project; operators of the platform write TENANT/PROJECT or TENANT/*"],
    "name": Annotated[str | None, "of one name, or of all that fit a pattern: 'score-*'"],
}


def _with_conditions(function: F) -> F:
    return add_flags(function, _CONDITIONS)


@client_command
@_with_conditions
def bulk(
    client: Client,
    action: Annotated[str, "cancel, hold, release, requeue, or show"],
    reason: Annotated[str, "why; the people of the jobs see it"] = "",
    yes: Annotated[bool, "do it; without this the jobs that would be hit are shown and nothing changes"] = False,
    **conditions: Any,
) -> Selection:
    """Cancel, hold, release or requeue all live jobs of a selection. Shows what would be hit; with --yes, does it.

    Example:
        falaj jobs bulk cancel --queue root/default --state waiting --older 1h --person amal --yes
        falaj jobs bulk show --project "bank/*" --state running
    """
    where = JobSelector(**{name: value for name, value in conditions.items() if value is not None})
    if action == "show":
        if yes or reason:
            raise Invalid("show changes nothing: expected no --yes and no --reason", "leave them out")
        return cast(Selection, client.jobs.overview(where, MAX_SELECTED))
    return cast(Selection, client.jobs.control(action, where, reason, dry=not yes))
