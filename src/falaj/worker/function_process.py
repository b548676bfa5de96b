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

from falaj.worker.function_wire import Call, Reply, decode_call, encode, pack_columns, unpack_columns

LENGTH = struct.Struct("<Q")
_FILE_NAME = "<feature function>"


class FunctionError(Exception):
    """What the text raised, in one line."""


def main(arguments: list[str]) -> None:
    """Answer calls over the inherited socket whose number is the argument."""
    channel = int(arguments[0])
    os.set_inheritable(channel, False)
    function: Callable[[Any], Any] | None = None
    while (data := _read_message(channel)) is not None:
        call = decode_call(data)
        try:
            function = _compile(call.text) if call.text else function
            reply = _run(function, call)
        except FunctionError as error:
            reply = Reply({}, str(error))
        _write(channel, encode(reply))


def _compile(text: str) -> Callable[[Any], Any]:
    with _Blame():
        name = ast.parse(text).body[-1].name  # type: ignore[attr-defined]
        # Annotations stay text: what they name need not be importable.
        code = compile(text, _FILE_NAME, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
        namespace: dict[str, Any] = {}
        exec(code, namespace)  # noqa: S102  # nosec B102 - inside the isolated process, which exists for this
        function: Callable[[Any], Any] = namespace[name]
        return function


def _run(function: Callable[[Any], Any] | None, call: Call) -> Reply:
    if function is None or (not call.columns and call.text):
        return Reply({})
    with _Blame():
        columns = function(unpack_columns(call.columns))
        if not isinstance(columns, Mapping):
            raise TypeError(f"expected a dict of columns, got {type(columns).__name__}")
        return Reply(pack_columns(columns))


class _Blame:
    """Turns whatever the text raises into a FunctionError that says what and where."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, FunctionError):
            return
        line = 0
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == _FILE_NAME else line
            trace = trace.tb_next
        where = f" (line {line})" if line else ""
        raise FunctionError(f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}{where}") from error


def _read_message(channel: int) -> bytearray | None:
    header = _read_exactly(channel, LENGTH.size)
    return None if header is None else _read_exactly(channel, LENGTH.unpack(header)[0])


def _read_exactly(channel: int, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = os.readv(channel, [view])
        if not count:
            return None
        view = view[count:]
    return data


def _write(channel: int, data: bytes) -> None:
    view = memoryview(LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(channel, view) :]


if __name__ == "__main__":
    sys.exit("this module runs inside an isolated process; see falaj.worker.function_sandbox")
