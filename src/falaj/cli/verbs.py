"""Commands from verbs: verbs become subcommands, parameters arguments and flags, docstrings help."""

import gc
import json
import math
import sys
import typing
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from falaj.cli import GLOBALS
from falaj.cli.frame import COMMON, Frame
from falaj.cli.progress import watched
from falaj.cli.streams import in_json, inward, outward
from falaj.cli.tables import put
from falaj.core.bind import options, type_name
from falaj.core.errand import ERRAND, errand_of, errands_of
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import Param, Verb, verb_of, verbs_of
from falaj.desks import DESKS, desk_class

if TYPE_CHECKING:
    import argparse

_COMMON = {"--at": "at", "--as": "name", "--ca": "ca", "--purpose": "purpose"}


def desk(frame: Frame, arguments: list[str]) -> int:
    """`falaj <desk> <verb> ...`."""
    name, arguments = frame.command, _followed(frame.command, arguments)
    pairs = zip(["", *arguments], arguments, strict=False)
    word = next((word for before, word in pairs if not word.startswith("-") and not GLOBALS.get(before)), "")
    verb = word_of(name, word) if word else None
    if verb is None:
        verbs = {typed(verb): verb for verb in words_of(name)}
        if word:
            raise Invalid(f"{name} has no verb {word[:40]!r}", f"it has: {', '.join(verbs)}")
        sys.stdout.write(desk_help(name, verbs))
        return 0 if not arguments or {"-h", "--help"} & set(arguments) else 2
    rest = list(arguments)
    rest.remove(word)
    frame, found = plainly(frame, verb, rest) or parsed(frame, name, verb, rest)
    with frame.connect() as platform:
        gc.freeze()
        gc.enable()
        if verb.group == ERRAND:
            platform.progress = watched()
            if is_heavy(name, verb.name):
                from falaj.core.heaps import keep_heaps

                keep_heaps()
        said = given(name, verb, found)
        formed = frame.as_json and any(param.name == "form" for param in verb.params)
        with in_json() if frame.as_json and verb.group == ERRAND else nullcontext():
            result = getattr(getattr(platform, name), verb.name)(**({"form": "json", **said} if formed else said))
        if formed:
            with suppress(ValueError):  # a drawing, which stays the text it is
                result = json.loads(result)
        if isinstance(result, Stream):
            outward(result, found.out)
        else:
            put(result, as_json=frame.as_json)
    # What checks something says by its exit code, too, that it is not as it should be.
    return 1 if getattr(result, "ok", True) is False else 0


def _followed(name: str, arguments: list[str]) -> list[str]:
    """`logs --follow`, as people know it from other tools, is `follow`."""
    rest = [word for word in arguments if word not in ("-f", "--follow")]
    if len(rest) == len(arguments) or "logs" not in rest or word_of(name, "follow") is None:
        return arguments
    rest[rest.index("logs")] = "follow"
    return rest


def words_of(name: str) -> list[Verb]:
    """All that can be said at a desk: its verbs and its errands."""
    found = errands_of(DESKS[name].errands).values()
    errands = [verb for verb, function in found if not hasattr(function, "__for_python__")]
    return [*errands, *verbs_of(desk_class(name)).values()]


def word_of(name: str, word: str) -> Verb | None:
    """One of them, as it is typed; what else the desk can do is not loaded."""
    said = word.replace("-", "_")
    if "_" in word:
        return None
    if said in DESKS[name].groups:
        return verb_of(desk_class(name), said)
    found = errand_of(DESKS[name].errands, said)
    return found[0] if found and not hasattr(found[1], "__for_python__") else None


def is_heavy(name: str, errand: str) -> bool:
    """Whether it is worth a command's while to keep the memory that gigabytes go through."""
    found = errand_of(DESKS[name].errands, errand)
    return found is not None and hasattr(found[1], "__moves_much__")


def typed(verb: Verb) -> str:
    """A verb as people type it."""
    return verb.name.replace("_", "-")


def desk_help(name: str, verbs: Mapping[str, Verb]) -> str:
    """What `falaj <desk> --help` says: every verb, and the examples of all."""
    width = max(map(len, verbs), default=0)
    lines = [f"usage: falaj {name} <verb> [arguments]", "", DESKS[name].summary, "", "verbs:"]
    lines += [f"  {name_:<{width}}  {verb.summary}" for name_, verb in verbs.items()]
    examples = [line for verb in verbs.values() for line in example(verb)]
    lines += ["", "examples:", *(f"  {line}" for line in examples)] if examples else []
    return "\n".join([*lines, "", f"more: falaj {name} <verb> --help", ""])


def example(verb: Verb) -> list[str]:
    """The lines of a docstring's Example block."""
    _, found, block = verb.doc.partition("Example:")
    return [line.strip() for line in block.splitlines() if line.strip()] if found else []


def plainly(frame: Frame, verb: Verb, arguments: list[str]) -> tuple[Frame, Any] | None:
    """What argparse would read where every flag is one of the verb's or ours, written in full, with its value.

    Anything else, help and mistakes too, is argparse's to read: None. It takes as long to load as a verb to run.
    """
    flags, words, taken = _flags(verb), list[str](), dict[str, Any]()
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        flag, equals, value = word.partition("=")
        name, kind = flags.get(flag, ("", ""))
        if kind in ("yes", "no") and not equals:
            taken[name] = kind == "yes"
            continue
        value = value if equals else next(rest, "-")
        if kind not in ("one", "many") or (not equals and value.startswith("-")):
            return None
        taken[name] = [*taken.get(name, ()), value] if kind == "many" else value
    late = {name: taken.pop(f"common_{name}") for name in COMMON if f"common_{name}" in taken}
    taken = {**({"out": "-"} if Stream in options(verb.result) else {}), **taken}
    return frame.later(late), SimpleNamespace(in_order=words, **taken)


def _flags(verb: Verb) -> dict[str, tuple[str, str]]:
    """Every flag: what it sets, and whether it takes one value or many, or says yes or no. The last one wins."""
    flags = {flag: (f"common_{name}", "one") for flag, name in _COMMON.items()}
    flags["--json"] = ("common_as_json", "yes")
    for param in (*in_order(verb), *(each for each in verb.params if not _positional(each))):
        flag, kind = _flag(param), _one(param.type)
        if kind is bool:
            flags |= {flag: (param.name, "yes"), f"--no-{flag[2:]}": (param.name, "no")}
        elif typing.get_origin(kind) in (tuple, list, dict):
            flags |= dict.fromkeys(_singular(flag), (param.name, "many"))
        else:
            flags[flag] = (param.name, "one")
    return flags | ({"--out": ("out", "one")} if Stream in options(verb.result) else {})


def parsed(frame: Frame, name: str, verb: Verb, arguments: list[str]) -> "tuple[Frame, argparse.Namespace]":
    """The same by argparse."""
    from falaj.cli.parsing import read

    return read(frame, parser_of(name, verb), arguments, plain=False)


def parser_of(name: str, verb: Verb) -> "argparse.ArgumentParser":
    """The parser of one verb. What is required comes in order or by its flag; a verb's own flag wins over ours."""
    import argparse

    from falaj.cli.parsing import Parser, common

    about, _, _ = verb.doc.partition("Example:")
    shown = example(verb)
    parser = Parser(
        prog=f"falaj {name} {typed(verb)}",
        usage=usage(name, verb),
        description=about.strip(),
        epilog="\n".join(["examples:", *(f"  {line}" for line in shown)]) if shown else None,
        formatter=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    common(parser)
    parser.add_argument("in_order", nargs="*", help=argparse.SUPPRESS)
    for param in in_order(verb):
        _add(parser, param)
    for param in verb.params:
        if not _positional(param):
            _add(parser, param)
    if Stream in options(verb.result):
        parser.add_argument("--out", metavar="FILE", default="-", help="where to write; - is standard output")
    return parser


def usage(name: str, verb: Verb) -> str:
    """One line that shows what is typed in order, and what else is required."""
    words = [f"{_shown(p, _one(p.type))}{' ...' if _many(p.type) else ''}" for p in in_order(verb)]
    words += [f"[{_shown(p, _one(p.type))}]" for p in _last(verb)]
    rest = [p for p in verb.params if p.required and not _positional(p)]
    words += [f"{_flag(p)} KEY=VALUE" if _many(p.type) else f"{_flag(p)}|--no-{_flag(p)[2:]}" for p in rest]
    return " ".join([f"falaj {name} {typed(verb)}", *words, "[flags]"])


def in_order(verb: Verb) -> list[Param]:
    """The required parameters as they are typed: references first, a list last."""
    return sorted((p for p in verb.params if _positional(p)), key=_order)


def _last(verb: Verb) -> list[Param]:
    """What may follow them without its flag: the one name that a list can be of."""
    return [p for p in verb.params if verb.name == "list" and p.name == "name" and not p.required]


def given(desk_name: str, verb: Verb, found: Any) -> dict[str, Any]:
    """What was typed, by parameter."""
    words: list[str] = list(found.in_order)
    taken = {p.name: getattr(found, p.name) for p in verb.params if getattr(found, p.name, None) is not None}
    for param in (*in_order(verb), *_last(verb)):
        if param.name not in taken and words:
            taken[param.name] = words if _many(param.type) else words.pop(0)
            words = [] if _many(param.type) else words
    wanted = [p for p in verb.params if p.required and p.name not in taken]
    missing = [_shown(p, _one(p.type)) if _positional(p) else _flag(p) for p in wanted]
    if missing or words:
        what = f"{', '.join(missing)} is missing" if missing else f"{words[0][:40]!r} is one argument too many"
        raise Invalid(what, usage(desk_name, verb))
    return {p.name: _value(p, taken[p.name]) for p in verb.params if p.name in taken}


def flags_of(verb: Verb) -> list[str]:
    """Every flag of a verb, for completion."""
    own = [_flag(p) for p in verb.params]
    negated = [f"--no-{_flag(p)[2:]}" for p in verb.params if _one(p.type) is bool]
    return sorted({*own, *negated, *GLOBALS, *(["--out"] if Stream in options(verb.result) else [])})


def _flag(param: Param) -> str:
    """`from_` is `--from`: some words people say are not free for names in Python."""
    return f"--{param.name.rstrip('_').replace('_', '-')}"


def _positional(param: Param) -> bool:
    return param.required and _one(param.type) is not bool and typing.get_origin(_one(param.type)) is not dict


def _order(param: Param) -> int:
    """References first, then what else is required; a list takes what is left, so it comes last."""
    if Ref in options(param.type):
        return 0
    return 2 if _many(param.type) else 1


def _many(kind: Any) -> bool:
    return typing.get_origin(_one(kind)) in (tuple, list, dict)


def _one(kind: Any) -> Any:
    """The type without its None."""
    return next((k for k in options(kind) if k is not type(None)), kind)


def _singular(flag: str) -> list[str]:
    """One at a time reads better in the singular: --input data=… --input labels=…"""
    return [flag, *([flag[:-1]] if flag.endswith("s") and len(flag) > 4 else [])]


def _add(parser: "argparse.ArgumentParser", param: Param) -> None:
    from argparse import BooleanOptionalAction

    kind = _one(param.type)
    text = (param.help or type_name(kind)).replace("%", "%%")
    origin = typing.get_origin(kind)
    flag = _flag(param)
    if kind is bool:
        parser.add_argument(flag, dest=param.name, action=BooleanOptionalAction, default=None, help=text)
    elif origin in (tuple, list, dict):
        shown, text = ("KEY=VALUE" if origin is dict else "A,B"), f"{text} (may be repeated)"
        parser.add_argument(*_singular(flag), dest=param.name, action="append", metavar=shown, help=text)
    else:
        default = f" (default: {param.default})" if param.default not in (None, "", ()) else ""
        shown = _shown(param, kind)
        parser.add_argument(flag, dest=param.name, metavar=shown, help=text + default.replace("%", "%%"))


def _shown(param: Param, kind: Any) -> str:
    return {Stream: "FILE", Label: "LABEL"}.get(kind, param.name.upper())


def _value(param: Param, given: Any) -> Any:
    """What was typed, as the verb's type; references and labels are read later, the same for every door."""
    kind = _one(param.type)
    origin = typing.get_origin(kind)
    if kind is Stream:
        return inward(given)
    if origin in (tuple, list):
        inner = typing.get_args(kind)[0]
        if is_dataclass(inner) and inner is not Label:
            whole = [_json(param, word) for word in given]
            return tuple(one for each in whole for one in (each if isinstance(each, list) else [each]))
        return tuple(_plain(param, inner, part.strip()) for word in given for part in word.split(",") if part.strip())
    if origin is dict:
        return _pairs(param, typing.get_args(kind)[1], given)
    return _plain(param, kind, given)


def _pairs(param: Param, kind: Any, given: list[str]) -> dict[str, Any]:
    """KEY=VALUE, KEY=A,B where a key has several, or a whole JSON object, as it is or from @FILE."""
    found: dict[str, Any] = {}
    for word in given:
        if word.startswith(("{", "@")):
            whole = _json(param, word)
            if not isinstance(whole, dict):
                raise Invalid(f"{param.name} is no JSON object", "write {…}, @FILE or KEY=VALUE")
            found |= whole
            continue
        key, equals, value = word.partition("=")
        if not equals:
            raise Invalid(f"--{param.name} takes KEY=VALUE", f"for example --{param.name} colour=blue")
        if key.strip() in found:
            raise Invalid(f"--{param.name} says {key.strip()[:40]!r} twice", "say it once")
        several = typing.get_origin(kind) is list
        found[key.strip()] = [_scalar(part) for part in value.split(",")] if several else _plain(param, kind, value)
    return found


def _scalar(text: str) -> Any:
    """A number, true, false or null as JSON has them, anything else as the text it is; quotes make a number a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json(param: Param, given: str) -> Any:
    try:
        return json.loads(Path(given[1:]).read_text(encoding="utf-8") if given.startswith("@") else given)
    except OSError as error:
        raise Invalid(f"{given[1:]} cannot be read: {error.strerror}", "check the path") from error
    except ValueError as error:
        raise Invalid(f"{param.name} is not JSON", "write a JSON object, or @FILE") from error


def _plain(param: Param, kind: Any, given: Any) -> Any:
    if kind in (int, float) and isinstance(given, str):
        with suppress(ValueError, OverflowError):
            if math.isfinite(number := kind(given)):  # the wire knows no other
                return number
        raise Invalid(f"{param.name} cannot be {given[:40]!r}", "it must be a number")
    if is_dataclass(kind) and kind is not Label and isinstance(given, str):
        return _json(param, given)
    return given
