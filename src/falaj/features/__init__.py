"""Features: one definition for training and for serving. Views of entities, services of views, their rows and rules.

How values are found at a moment stands in `asof`; here is who defines them, where their rows lie and who may read them.
The names a definition file imports are those of `define.py`; they load on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from falaj.features.define import (
        Entity,
        Feature,
        Request,
        Rule,
        Service,
        Source,
        Window,
        coalesce,
        col,
        concat,
        lit,
        on_demand,
        seconds_between,
        shared,
        view,
        when,
    )

__all__ = [
    "Entity",
    "Feature",
    "Request",
    "Rule",
    "Service",
    "Source",
    "Window",
    "coalesce",
    "col",
    "concat",
    "lit",
    "on_demand",
    "seconds_between",
    "shared",
    "view",
    "when",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'falaj.features' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("falaj.features.define"), name)
