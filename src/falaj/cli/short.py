"""Short words for what people say often: `falaj reproduce` is `falaj catalog reproduce`."""

from dataclasses import replace

from falaj.cli.frame import Frame
from falaj.cli.verbs import desk


def reproduce(frame: Frame, arguments: list[str]) -> int:
    """`falaj reproduce MODEL`."""
    return desk(replace(frame, command="catalog"), ["reproduce", *arguments])
