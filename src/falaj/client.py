"""A desk as its user sees it: every verb a method without the context, every errand one without the platform."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, BinaryIO

from falaj.core.argument_binding import bind_arguments, union_members
from falaj.core.byte_channel import UploadReceipt
from falaj.core.byte_stream import ByteStream
from falaj.core.client_command import find_client_command, list_client_commands
from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.operation import Operation, get_operation, list_operation_groups
from falaj.services import SERVICES, load_service_class
from falaj.store.codec import from_plain

CHUNK_BYTES = 1 << 20


class ServiceProxy:
    """A desk as its user sees it: every verb a method without the context, every errand one without the platform."""

    def __init__(
        self, service_name: str, client: Any, call_operation: Callable[[str, Operation, dict[str, Any]], Any]
    ) -> None:
        self._service_name, self._client, self._call_operation = service_name, client, call_operation
        self._service_class = load_service_class(service_name)
        self.__doc__ = self._service_class.__doc__

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in list_operation_groups(self._service_class):
            bound_call = partial(
                _call_bound_operation,
                self._service_name,
                get_operation(self._service_class, name),
                self._call_operation,
            )
            return update_wrapper(bound_call, getattr(self._service_class, name))
        command = find_client_command(SERVICES[self._service_name].errands, name)
        if command is None:
            raise AttributeError(f"{self._service_name} has no verb {name!r}; it has: {', '.join(dir(self))}")
        return update_wrapper(partial(_run_client_command, self._client, *command), command[1])

    def __dir__(self) -> list[str]:
        return [
            *list_operation_groups(self._service_class),
            *list_client_commands(SERVICES[self._service_name].errands),
        ]


class ServerByteChannel:
    """The byte channel of a house in this process."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, ticket: str, chunks: Iterable[bytes]) -> UploadReceipt:
        """Store one piece; durable on return."""
        receipt: UploadReceipt = self._client.house.transfers.put(self._call_context(), ticket, chunks)
        return receipt

    def bundle(self, ticket: str, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        """Tie pieces together."""
        receipt: UploadReceipt = self._client.house.transfers.bundle(self._call_context(), ticket, receipts)
        return receipt

    def get(self, ticket: str, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes of what the ticket opens."""
        chunks: Iterator[bytes] = self._client.house.transfers.get(self._call_context(), ticket, digest, start, stop)
        return chunks

    def _call_context(self) -> CallContext:
        ctx: CallContext = self._client.house.context(self._client.actor)
        return ctx


def _run_client_command(
    client: Any, operation: Operation, command_function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    return command_function(client, **bind_arguments(operation, args, kwargs))


def _call_bound_operation(
    service_name: str,
    operation: Operation,
    call_operation: Callable[[str, Operation, dict[str, Any]], Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Read what holds bytes as a stream of them, fit the rest to the signature, and call."""
    stream_params = {param.name for param in operation.params if ByteStream in union_members(param.type)}
    if stream_params:
        param_names = [param.name for param in operation.params]
        args = (
            tuple(
                to_byte_stream(argument) if param_name in stream_params else argument
                for param_name, argument in zip(param_names, args, strict=False)
            )
            + args[len(param_names) :]
        )
        kwargs = {
            param_name: to_byte_stream(argument) if param_name in stream_params and argument is not None else argument
            for param_name, argument in kwargs.items()
        }
    bound_arguments = bind_arguments(
        operation, args, {name: _to_record(operation, name, value) for name, value in kwargs.items()}
    )
    return call_operation(service_name, operation, bound_arguments)


def _to_record(operation: Operation, param_name: str, value: Any) -> Any:
    """A record that was written as plain values, as scripts and JSON files do."""
    record_types = [
        record_type
        for param in operation.params
        if param.name == param_name
        for record_type in union_members(param.type)
        if is_dataclass(record_type)
    ]
    return (
        from_plain(record_types[0], value)
        if record_types and record_types[0] is not Label and isinstance(value, Mapping)
        else value
    )


def to_byte_stream(value: Any) -> ByteStream:
    """Bytes from whatever holds them: bytes, a path, an open file, or chunks."""
    if isinstance(value, ByteStream):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ByteStream([bytes(value)], len(value))
    if isinstance(value, (str, Path)):
        path = Path(value)
        if not path.is_file():
            raise Invalid(f"{path} is not a file", "give bytes, or the path of a file")
        return ByteStream(_read_file_chunks(path.open("rb")), path.stat().st_size)
    if hasattr(value, "read"):
        return ByteStream(_read_file_chunks(value))
    return ByteStream(value)


def _read_file_chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
