"""What operators of queues do beside the platform: apply a file that says the whole tree."""

import tomllib
from pathlib import Path
from typing import Annotated, cast

from falaj.core.client_command import Client, client_command
from falaj.core.errors import Invalid
from falaj.fleet.records import QueueChange


@client_command
def apply(
    client: Client,
    file: Annotated[str, 'a TOML file: a table for each queue, ["root/bank/fraud"]'],
    yes: Annotated[bool, "do it; without this the plan is shown and nothing changes"] = False,
) -> tuple[QueueChange, ...]:
    """Have exactly the queues that a file says. Shows the plan; with --yes, carries it out.

    Example:
        falaj queues apply queues.toml --yes
    """
    return cast(tuple[QueueChange, ...], client.queues.replace(read_queue_file(file), dry=not yes))


def read_queue_file(file: str) -> dict[str, dict[str, object]]:
    """The queues of a file by path, each a table of weight, guarantee, limit, lend, projects, budget."""
    try:
        tree = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}", "check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not TOML: {error}", 'for example ["root/bank"] and below it weight = 2') from error
    wrong = [name for name, words in tree.items() if not isinstance(words, dict)]
    if wrong:
        raise Invalid(f"{wrong[0][:60]!r} stands outside any queue", 'put it below ["root/bank"]')
    return tree
