"""`python -m tests.fuzz [SECONDS] [TARGET …]`: fuzz every reader for its share of the time; 1 when one complains."""

import base64
import os
import sys
import time

from tests.fuzz.targets import Target, targets
from tests.fuzz.turn import bound_memory, turn

EVER = 1 << 40


def main(words: list[str]) -> int:
    seconds, every = float(words[0]) if words else 60.0, targets()
    chosen = [every[name] for name in words[1:]] or list(every.values())
    # From another number each time; a finding prints the input itself.
    first = int(os.environ.get("FALAJ_FUZZ_SEED") or time.time_ns() >> 10)
    print(f"{len(chosen)} readers, {seconds:g} s; again with FALAJ_FUZZ_SEED={first}", flush=True)
    bad = [one.name for one in chosen if _alone(one, first, seconds / len(chosen))]
    print(f"{len(bad)} readers complain: {', '.join(bad)}" if bad else "no reader complains")
    return 1 if bad else 0


def _alone(target: Target, first: int, share_s: float) -> bool:
    """In a process of its own: one that is killed, or runs out of memory, is a finding, too."""
    child = os.fork()
    if child == 0:
        os._exit(_one(target, first, share_s))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        print(f"{target.name}: ended with {code}", flush=True)
    return code != 0


def _one(target: Target, first: int, share_s: float) -> int:
    bound_memory()
    tried, found = turn(target, first, EVER, time.monotonic() + share_s)
    print(f"{target.name:32}{tried:>9} inputs{'' if not found else f', {len(found)} complaints'}", flush=True)
    for said, data in found.items():
        print(f"    {said}\n    base64 {base64.b64encode(data[:600]).decode()}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
