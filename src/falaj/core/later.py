"""later: a module that is loaded when something of it is first used."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def put_off(name: str) -> None:
    """Load a part of a package not with the package, which imports it, but when something in it is first asked for.

    For a part of somebody else's package that takes long to load and that nobody here uses.
    """
    if name in sys.modules:
        return
    stand_in: Any = ModuleType(name)

    def load(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        return getattr(import_module(name), wanted)

    stand_in.__getattr__ = load
    sys.modules[name] = stand_in
