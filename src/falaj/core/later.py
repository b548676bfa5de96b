"""later: a module that is loaded when something of it is first used."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def put_off(name: str, **known: Any) -> None:
    """Load a module not with whatever imports it, but when something in it is first asked for.

    For a part of somebody else's package, or of Python, that takes long to load and that nobody here uses. What is
    `known` of it is given without loading it; of a package whose own modules are used all the same, that is `__path__`.
    """
    if name in sys.modules:
        return
    stand_in: Any = ModuleType(name)

    def load(wanted: str) -> Any:
        if wanted == "__path__":  # asked of every module that something is imported from: is it a package?
            raise AttributeError(wanted)
        if sys.modules.get(name) is stand_in:
            sys.modules.pop(name, None)  # another thread may have
        loaded = import_module(name)
        for part, value in vars(stand_in).items():
            if isinstance(value, ModuleType):  # a module of the package, which was imported before it
                vars(loaded).setdefault(part, value)
        # Who has the stand-in keeps it: from now on it answers by itself.
        vars(stand_in).update(vars(loaded))
        return getattr(loaded, wanted)

    stand_in.__getattr__ = load
    vars(stand_in).update(known)
    sys.modules[name] = stand_in
