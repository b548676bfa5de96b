"""`python -m falaj.infer CONFIG.json`: a server of its own; without a file, the replica of an attempt."""

import json
import os
import sys
from pathlib import Path

from falaj.core.errors import FalajError
from falaj.core.heaps import share_heaps
from falaj.infer.configuring import SERVE, of_attempt, read_config
from falaj.infer.records import Config
from falaj.infer.server import begun, run, told


def main(given: list[str]) -> int:
    """Serve until told to end."""
    share_heaps()
    try:
        config = read_config(Path(given[0]).read_bytes()) if given else of_attempt()
        return run(_serve(config))
    except FalajError as error:
        print(f"falaj.infer: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except (OSError, KeyError) as error:
        print(f"falaj.infer: give a config file, or {SERVE}: {error}", file=sys.stderr)  # noqa: T201
        return 2


async def _serve(config: Config) -> int:
    server, ended = await begun(config)
    told("serving", server.fact())
    print(json.dumps(server.ready()), flush=True)  # noqa: T201
    await ended.wait()
    told("draining", {"pid": os.getpid()})
    await server.drain()
    return server.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
