"""Erases a person in a process of its own, for somebody to kill: says a line after every act that changed something."""

import sys
from typing import Any

from falaj.core.ref import Ref
from falaj.features.person_erasure import erase
from falaj.server import LocalClient, Server, load_settings

ACTS = ("commit", "delete", "tag", "forget", "replace", "rekey")


class Told:
    """A desk whose acts are told."""

    def __init__(self, room: Any) -> None:
        self._room = room

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._room, name)
        if name not in ACTS:
            return act

        def told(*args: Any, **kwargs: Any) -> Any:
            done = act(*args, **kwargs)
            print(name, flush=True)
            return done

        return told


class Aloud:
    """The platform, with every act told."""

    def __init__(self, here: Any) -> None:
        self._here = here

    def __getattr__(self, name: str) -> Any:
        room = getattr(self._here, name)
        return Told(room) if name in ("catalog", "features") else room


if __name__ == "__main__":
    home, zone, token, project, who = sys.argv[1:]
    house = Server(load_settings(home, {"zone": zone}))
    erase(Aloud(LocalClient(house, house.authenticate(token), "fraud")), Ref("entity", project, "customer"), who)
    print("done", flush=True)
