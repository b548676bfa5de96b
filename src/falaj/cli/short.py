"""Short words for what people say often: `falaj reproduce` is `falaj catalog reproduce`."""

from dataclasses import replace

from falaj.cli.frame import Frame
from falaj.cli.verbs import desk


def reproduce(frame: Frame, arguments: list[str]) -> int:
    """`falaj reproduce MODEL`."""
    return desk(replace(frame, command="catalog"), ["reproduce", *arguments])


def optimize(frame: Frame, arguments: list[str]) -> int:
    """`falaj optimize MODEL --for cpu`: `--for` is `--aim`, and each way of `--how` is a flag of its own."""
    from falaj.study.optimizing import HOW

    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag == "--for":
            words.append(f"--aim{equals}{value}")
        elif flag.startswith("--") and flag[2:] in HOW and (equals or rest):
            words += ["--how", f"{flag[2:]}={value if equals else rest.pop(0)}"]
        else:
            words.append(word)
    return desk(replace(frame, command="catalog"), ["optimize", *words])
