"""The isolated process of one feature function: it compiles the text and answers calls until its caller is gone.

This is the only module that runs the text of feature functions, and it only runs inside an isolated process
(isolated_process.py). What it writes is read by function_sandbox.py as untrusted bytes.
"""

import __future__

import ast
import os
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from falaj.worker.function_protocol import (
    FunctionCall,
    FunctionReply,
    decode_call,
    encode_message,
    pack_columns,
    unpack_columns,
)

LENGTH_FORMAT = struct.Struct("<Q")
_FILE_NAME = "<feature function>"


class FunctionError(Exception):
    """What the text raised, in one line."""


def main(arguments: list[str]) -> None:
    """Answer calls over the inherited socket whose number is the argument."""
    channel = int(arguments[0])
    os.set_inheritable(channel, False)
    function: Callable[[Any], Any] | None = None
    while (data := _read_message(channel)) is not None:
        function_call = decode_call(data)
        try:
            function = _compile_function(function_call.text) if function_call.text else function
            reply = _run_function(function, function_call)
        except FunctionError as error:
            reply = FunctionReply({}, str(error))
        _write_message(channel, encode_message(reply))


def _compile_function(text: str) -> Callable[[Any], Any]:
    with _UserErrorContext():
        name = ast.parse(text).body[-1].name  # type: ignore[attr-defined]
        # Annotations stay text: what they name need not be importable.
        code = compile(text, _FILE_NAME, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
        namespace: dict[str, Any] = {}
        exec(code, namespace)  # noqa: S102  # nosec B102 - inside the isolated process, which exists for this
        function: Callable[[Any], Any] = namespace[name]
        return function


def _run_function(function: Callable[[Any], Any] | None, function_call: FunctionCall) -> FunctionReply:
    if function is None or (not function_call.columns and function_call.text):
        return FunctionReply({})
    with _UserErrorContext():
        columns = function(unpack_columns(function_call.columns))
        if not isinstance(columns, Mapping):
            raise TypeError(f"expected a dict of columns, got {type(columns).__name__}")
        return FunctionReply(pack_columns(columns))


class _UserErrorContext:
    """Turns whatever the text raises into a FunctionError that says what and where."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if error is None or isinstance(error, FunctionError):
            return
        line = 0
        while traceback is not None:
            line = traceback.tb_lineno if traceback.tb_frame.f_code.co_filename == _FILE_NAME else line
            traceback = traceback.tb_next
        line_text = f" (line {line})" if line else ""
        raise FunctionError(f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}{line_text}") from error


def _read_message(channel: int) -> bytearray | None:
    header = _read_exactly(channel, LENGTH_FORMAT.size)
    return None if header is None else _read_exactly(channel, LENGTH_FORMAT.unpack(header)[0])


def _read_exactly(channel: int, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = os.readv(channel, [view])
        if not count:
            return None
        view = view[count:]
    return data


def _write_message(channel: int, data: bytes) -> None:
    view = memoryview(LENGTH_FORMAT.pack(len(data)) + data)
    while view:
        view = view[os.write(channel, view) :]


if __name__ == "__main__":
    sys.exit("this module runs inside an isolated process; see falaj.worker.function_sandbox")
