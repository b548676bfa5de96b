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

from falaj.cli import GLOBAL_FLAGS
from falaj.cli.byte_streams import open_input, write_lines_as_json, write_output
from falaj.cli.cli_context import COMMON_FLAGS, CliContext
from falaj.cli.output import print_result
from falaj.cli.progress import create_progress_reporter
from falaj.core.argument_binding import format_type_name, union_members
from falaj.core.byte_stream import ByteStream
from falaj.core.client_command import CLIENT_COMMAND_GROUP, find_client_command, list_client_commands
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.operation import Operation, OperationParam, get_operation, list_operations
from falaj.core.ref import Ref
from falaj.services import SERVICES, load_service_class

if TYPE_CHECKING:
    import argparse

_COMMON_FLAGS = {"--at": "at", "--as": "name", "--ca": "ca", "--purpose": "purpose"}


def run_service_command(context: CliContext, arguments: list[str]) -> int:
    """`falaj <desk> <verb> ...`."""
    service_name, arguments = context.command, _rewrite_follow(context.command, arguments)
    adjacent_words = zip(["", *arguments], arguments, strict=False)
    word = next(
        (
            word
            for previous_word, word in adjacent_words
            if not word.startswith("-") and not GLOBAL_FLAGS.get(previous_word)
        ),
        "",
    )
    operation = find_operation(service_name, word) if word else None
    if operation is None:
        operations = {to_typed_name(operation): operation for operation in list_operations_and_commands(service_name)}
        if word:
            raise Invalid(f"{service_name} has no verb {word[:40]!r}", f"it has: {', '.join(operations)}")
        sys.stdout.write(build_service_help(service_name, operations))
        return 0 if not arguments or {"-h", "--help"} & set(arguments) else 2
    remaining = list(arguments)
    remaining.remove(word)
    context, parsed_arguments = parse_plainly(context, operation, remaining) or parse_by_argparse(
        context, service_name, operation, remaining
    )
    with context.connect() as client:
        gc.freeze()
        gc.enable()
        if operation.group == CLIENT_COMMAND_GROUP:
            client.progress = create_progress_reporter()
            if moves_much_data(service_name, operation.name):
                from falaj.core.malloc_tuning import retain_freed_memory

                retain_freed_memory()
        call_arguments = collect_arguments(service_name, operation, parsed_arguments)
        has_json_form = context.as_json and any(param.name == "form" for param in operation.params)
        with write_lines_as_json() if context.as_json and operation.group == CLIENT_COMMAND_GROUP else nullcontext():
            result = getattr(getattr(client, service_name), operation.name)(
                **({"form": "json", **call_arguments} if has_json_form else call_arguments)
            )
        if has_json_form:
            with suppress(ValueError):  # a drawing, which stays the text it is
                result = json.loads(result)
        if isinstance(result, ByteStream):
            write_output(result, parsed_arguments.out)
        else:
            print_result(result, as_json=context.as_json)
    # What checks something says by its exit code, too, that it is not as it should be.
    return 1 if getattr(result, "ok", True) is False else 0


def _rewrite_follow(service_name: str, arguments: list[str]) -> list[str]:
    """`logs --follow`, as people know it from other tools, is `follow`."""
    remaining = [word for word in arguments if word not in ("-f", "--follow")]
    if len(remaining) == len(arguments) or "logs" not in remaining or find_operation(service_name, "follow") is None:
        return arguments
    remaining[remaining.index("logs")] = "follow"
    return remaining


def list_operations_and_commands(service_name: str) -> list[Operation]:
    """All that can be said at a desk: its verbs and its errands."""
    client_commands = list_client_commands(SERVICES[service_name].errands).values()
    shown_commands = [operation for operation, function in client_commands if not hasattr(function, "__for_python__")]
    return [*shown_commands, *list_operations(load_service_class(service_name)).values()]


def find_operation(service_name: str, word: str) -> Operation | None:
    """One of them, as it is typed; what else the desk can do is not loaded."""
    operation_name = word.replace("-", "_")
    if "_" in word:
        return None
    if operation_name in SERVICES[service_name].groups:
        return get_operation(load_service_class(service_name), operation_name)
    command = find_client_command(SERVICES[service_name].errands, operation_name)
    return command[0] if command and not hasattr(command[1], "__for_python__") else None


def moves_much_data(service_name: str, command_name: str) -> bool:
    """Whether it is worth a command's while to keep the memory that gigabytes go through."""
    command = find_client_command(SERVICES[service_name].errands, command_name)
    return command is not None and hasattr(command[1], "__moves_much__")


def to_typed_name(operation: Operation) -> str:
    """A verb as people type it."""
    return operation.name.replace("_", "-")


def build_service_help(service_name: str, operations: Mapping[str, Operation]) -> str:
    """What `falaj <desk> --help` says: every verb, and the examples of all."""
    width = max(map(len, operations), default=0)
    lines = [f"usage: falaj {service_name} <verb> [arguments]", "", SERVICES[service_name].summary, "", "verbs:"]
    lines += [f"  {typed_name:<{width}}  {operation.summary}" for typed_name, operation in operations.items()]
    examples = [line for operation in operations.values() for line in list_example_lines(operation)]
    lines += ["", "examples:", *(f"  {line}" for line in examples)] if examples else []
    return "\n".join([*lines, "", f"more: falaj {service_name} <verb> --help", ""])


def list_example_lines(operation: Operation) -> list[str]:
    """The lines of a docstring's Example block."""
    _, marker, block = operation.doc.partition("Example:")
    return [line.strip() for line in block.splitlines() if line.strip()] if marker else []


def parse_plainly(context: CliContext, operation: Operation, arguments: list[str]) -> tuple[CliContext, Any] | None:
    """What argparse would read where every flag is one of the verb's or ours, written in full, with its value.

    Anything else, help and mistakes too, is argparse's to read: None. It takes as long to load as a verb to run.
    """
    flags, positional_words, values_by_name = _map_flags(operation), list[str](), dict[str, Any]()
    remaining = iter(arguments)
    for word in remaining:
        if not word.startswith("-") or word == "-":
            positional_words.append(word)
            continue
        flag, equals_sign, value = word.partition("=")
        name, flag_kind = flags.get(flag, ("", ""))
        if flag_kind in ("yes", "no") and not equals_sign:
            values_by_name[name] = flag_kind == "yes"
            continue
        value = value if equals_sign else next(remaining, "-")
        if flag_kind not in ("one", "many") or (not equals_sign and value.startswith("-")):
            return None
        values_by_name[name] = [*values_by_name.get(name, ()), value] if flag_kind == "many" else value
    common_values = {
        name: values_by_name.pop(f"common_{name}") for name in COMMON_FLAGS if f"common_{name}" in values_by_name
    }
    values_by_name = {**({"out": "-"} if ByteStream in union_members(operation.result) else {}), **values_by_name}
    return context.later(common_values), SimpleNamespace(in_order=positional_words, **values_by_name)


def _map_flags(operation: Operation) -> dict[str, tuple[str, str]]:
    """Every flag: what it sets, and whether it takes one value or many, or says yes or no. The last one wins."""
    flags = {flag: (f"common_{name}", "one") for flag, name in _COMMON_FLAGS.items()}
    flags["--json"] = ("common_as_json", "yes")
    for param in (
        *list_positional_params(operation),
        *(other_param for other_param in operation.params if not _is_positional(other_param)),
    ):
        flag, value_type = _to_flag(param), _strip_none_type(param.type)
        if value_type is bool:
            flags |= {flag: (param.name, "yes"), f"--no-{flag[2:]}": (param.name, "no")}
        elif typing.get_origin(value_type) in (tuple, list, dict):
            flags |= dict.fromkeys(_with_singular(flag), (param.name, "many"))
        else:
            flags[flag] = (param.name, "one")
    return flags | ({"--out": ("out", "one")} if ByteStream in union_members(operation.result) else {})


def parse_by_argparse(
    context: CliContext, service_name: str, operation: Operation, arguments: list[str]
) -> "tuple[CliContext, argparse.Namespace]":
    """The same by argparse."""
    from falaj.cli.argument_parsing import parse_arguments

    return parse_arguments(context, create_operation_parser(service_name, operation), arguments, is_plain=False)


def create_operation_parser(service_name: str, operation: Operation) -> "argparse.ArgumentParser":
    """The parser of one verb. What is required comes in order or by its flag; a verb's own flag wins over ours."""
    import argparse

    from falaj.cli.argument_parsing import CommandParser, add_common_flags

    description, _, _ = operation.doc.partition("Example:")
    example_lines = list_example_lines(operation)
    parser = CommandParser(
        prog=f"falaj {service_name} {to_typed_name(operation)}",
        usage=build_usage(service_name, operation),
        description=description.strip(),
        epilog="\n".join(["examples:", *(f"  {line}" for line in example_lines)]) if example_lines else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    add_common_flags(parser)
    parser.add_argument("in_order", nargs="*", help=argparse.SUPPRESS)
    for param in list_positional_params(operation):
        _add_param(parser, param)
    for param in operation.params:
        if not _is_positional(param):
            _add_param(parser, param)
    if ByteStream in union_members(operation.result):
        parser.add_argument("--out", metavar="FILE", default="-", help="where to write; - is standard output")
    return parser


def build_usage(service_name: str, operation: Operation) -> str:
    """One line that shows what is typed in order, and what else is required."""
    words = [
        f"{_get_metavar(param, _strip_none_type(param.type))}{' ...' if _takes_many(param.type) else ''}"
        for param in list_positional_params(operation)
    ]
    words += [
        f"[{_get_metavar(param, _strip_none_type(param.type))}]" for param in _list_optional_positionals(operation)
    ]
    required_flags = [param for param in operation.params if param.required and not _is_positional(param)]
    words += [
        f"{_to_flag(param)} KEY=VALUE" if _takes_many(param.type) else f"{_to_flag(param)}|--no-{_to_flag(param)[2:]}"
        for param in required_flags
    ]
    return " ".join([f"falaj {service_name} {to_typed_name(operation)}", *words, "[flags]"])


def list_positional_params(operation: Operation) -> list[OperationParam]:
    """The required parameters as they are typed: references first, a list last."""
    return sorted((param for param in operation.params if _is_positional(param)), key=_positional_order)


def _list_optional_positionals(operation: Operation) -> list[OperationParam]:
    """What may follow them without its flag: the one name that a list can be of."""
    return [
        param for param in operation.params if operation.name == "list" and param.name == "name" and not param.required
    ]


def collect_arguments(service_name: str, operation: Operation, parsed_arguments: Any) -> dict[str, Any]:
    """What was typed, by parameter."""
    positional_words: list[str] = list(parsed_arguments.in_order)
    values_by_name = {
        each_param.name: getattr(parsed_arguments, each_param.name)
        for each_param in operation.params
        if getattr(parsed_arguments, each_param.name, None) is not None
    }
    for param in (*list_positional_params(operation), *_list_optional_positionals(operation)):
        if param.name not in values_by_name and positional_words:
            values_by_name[param.name] = positional_words if _takes_many(param.type) else positional_words.pop(0)
            positional_words = [] if _takes_many(param.type) else positional_words
    missing_params = [
        each_param for each_param in operation.params if each_param.required and each_param.name not in values_by_name
    ]
    missing = [
        _get_metavar(each_param, _strip_none_type(each_param.type))
        if _is_positional(each_param)
        else _to_flag(each_param)
        for each_param in missing_params
    ]
    if missing or positional_words:
        message = (
            f"{', '.join(missing)} is missing" if missing else f"{positional_words[0][:40]!r} is one argument too many"
        )
        raise Invalid(message, build_usage(service_name, operation))
    return {
        each_param.name: _convert_value(each_param, values_by_name[each_param.name])
        for each_param in operation.params
        if each_param.name in values_by_name
    }


def list_operation_flags(operation: Operation) -> list[str]:
    """Every flag of a verb, for completion."""
    own_flags = [_to_flag(param) for param in operation.params]
    negated_flags = [
        f"--no-{_to_flag(param)[2:]}" for param in operation.params if _strip_none_type(param.type) is bool
    ]
    return sorted(
        {
            *own_flags,
            *negated_flags,
            *GLOBAL_FLAGS,
            *(["--out"] if ByteStream in union_members(operation.result) else []),
        }
    )


def _to_flag(param: OperationParam) -> str:
    """`from_` is `--from`: some words people say are not free for names in Python."""
    return f"--{param.name.rstrip('_').replace('_', '-')}"


def _is_positional(param: OperationParam) -> bool:
    return (
        param.required
        and _strip_none_type(param.type) is not bool
        and typing.get_origin(_strip_none_type(param.type)) is not dict
    )


def _positional_order(param: OperationParam) -> int:
    """References first, then what else is required; a list takes what is left, so it comes last."""
    if Ref in union_members(param.type):
        return 0
    return 2 if _takes_many(param.type) else 1


def _takes_many(value_type: Any) -> bool:
    return typing.get_origin(_strip_none_type(value_type)) in (tuple, list, dict)


def _strip_none_type(value_type: Any) -> Any:
    """The type without its None."""
    return next((member_type for member_type in union_members(value_type) if member_type is not type(None)), value_type)


def _with_singular(flag: str) -> list[str]:
    """One at a time reads better in the singular: --input data=… --input labels=…"""
    return [flag, *([flag[:-1]] if flag.endswith("s") and len(flag) > 4 else [])]


def _add_param(parser: "argparse.ArgumentParser", param: OperationParam) -> None:
    from argparse import BooleanOptionalAction

    value_type = _strip_none_type(param.type)
    help_text = (param.help or format_type_name(value_type)).replace("%", "%%")
    origin = typing.get_origin(value_type)
    flag = _to_flag(param)
    if value_type is bool:
        parser.add_argument(flag, dest=param.name, action=BooleanOptionalAction, default=None, help=help_text)
    elif origin in (tuple, list, dict):
        metavar, help_text = ("KEY=VALUE" if origin is dict else "A,B"), f"{help_text} (may be repeated)"
        parser.add_argument(*_with_singular(flag), dest=param.name, action="append", metavar=metavar, help=help_text)
    else:
        default = f" (default: {param.default})" if param.default not in (None, "", ()) else ""
        metavar = _get_metavar(param, value_type)
        parser.add_argument(flag, dest=param.name, metavar=metavar, help=help_text + default.replace("%", "%%"))


def _get_metavar(param: OperationParam, value_type: Any) -> str:
    return {ByteStream: "FILE", Label: "LABEL"}.get(value_type, param.name.upper())


def _convert_value(param: OperationParam, typed_value: Any) -> Any:
    """What was typed, as the verb's type; references and labels are read later, the same for every door."""
    value_type = _strip_none_type(param.type)
    origin = typing.get_origin(value_type)
    if value_type is ByteStream:
        return open_input(typed_value)
    if origin in (tuple, list):
        item_type = typing.get_args(value_type)[0]
        if is_dataclass(item_type) and item_type is not Label:
            json_values = [_parse_json(param, word) for word in typed_value]
            return tuple(
                item
                for json_value in json_values
                for item in (json_value if isinstance(json_value, list) else [json_value])
            )
        return tuple(
            _convert_plain(param, item_type, part.strip())
            for word in typed_value
            for part in word.split(",")
            if part.strip()
        )
    if origin is dict:
        return _parse_pairs(param, typing.get_args(value_type)[1], typed_value)
    return _convert_plain(param, value_type, typed_value)


def _parse_pairs(param: OperationParam, value_type: Any, texts: list[str]) -> dict[str, Any]:
    """KEY=VALUE, KEY=A,B where a key has several, or a whole JSON object, as it is or from @FILE."""
    parsed_pairs: dict[str, Any] = {}
    for word in texts:
        if word.startswith(("{", "@")):
            json_object = _parse_json(param, word)
            if not isinstance(json_object, dict):
                raise Invalid(f"{param.name} is no JSON object", "write {…}, @FILE or KEY=VALUE")
            parsed_pairs |= json_object
            continue
        key, equals_sign, value = word.partition("=")
        if not equals_sign:
            raise Invalid(f"--{param.name} takes KEY=VALUE", f"for example --{param.name} colour=blue")
        if key.strip() in parsed_pairs:
            raise Invalid(f"--{param.name} says {key.strip()[:40]!r} twice", "say it once")
        has_several = typing.get_origin(value_type) is list
        parsed_pairs[key.strip()] = (
            [_parse_scalar(part) for part in value.split(",")]
            if has_several
            else _convert_plain(param, value_type, value)
        )
    return parsed_pairs


def _parse_scalar(text: str) -> Any:
    """A number, true, false or null as JSON has them, anything else as the text it is; quotes make a number a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parse_json(param: OperationParam, text: str) -> Any:
    try:
        return json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
    except OSError as error:
        raise Invalid(f"{text[1:]} cannot be read: {error.strerror}", "check the path") from error
    except ValueError as error:
        raise Invalid(f"{param.name} is not JSON", "write a JSON object, or @FILE") from error


def _convert_plain(param: OperationParam, value_type: Any, typed_value: Any) -> Any:
    if value_type in (int, float) and isinstance(typed_value, str):
        with suppress(ValueError, OverflowError):
            if math.isfinite(number := value_type(typed_value)):  # the wire knows no other
                return number
        raise Invalid(f"{param.name} cannot be {typed_value[:40]!r}", "it must be a number")
    if is_dataclass(value_type) and value_type is not Label and isinstance(typed_value, str):
        return _parse_json(param, typed_value)
    return typed_value
