"""errand: what runs beside its caller and is made of verbs: publish a folder, check one out, carry runs in.

A verb runs in the house and sees no path of its caller's. An errand reads and writes the caller's files and calls verbs
and the byte channel like any other client, so it needs no permission of its own and has no route.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import Any, Protocol, TypeVar

from falaj.core.byte_channel import ByteChannel
from falaj.core.operation import Operation, describe_operation
from falaj.core.ports import OnlineStore

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
CLIENT_COMMAND_GROUP = "errand"
"""The group of what needs no permission of its own."""
_OPERATION_MARK = (CLIENT_COMMAND_GROUP, (), (), "", "", True, False, (), False)


class ProgressTask(Protocol):
    """One long piece of work that somebody may be watching."""

    def advance(self, amount: int) -> None: ...
    def resize(self, total: int | None) -> None:
        """How much there is to do became known, or changed."""
        ...


class ProgressReporter(Protocol):
    """Whom long errands tell how far they are. `unit` is "B" for bytes, else what is counted ("files")."""

    def task(self, text: str, total: int | None = None, unit: str = "B") -> AbstractContextManager[ProgressTask]: ...
    def note(self, text: str) -> None:
        """Tell the person something that the outcome will not say, such as why a command waits."""
        ...


class Client(Protocol):
    """The platform as an errand sees it, in process or remote: desks as attributes, and these."""

    @property
    def address(self) -> str:
        """What names this platform and its caller's view of it in local caches."""
        ...

    @property
    def bytes(self) -> ByteChannel: ...
    @property
    def progress(self) -> ProgressReporter: ...
    def working(self) -> AbstractContextManager[None]:
        """While entered, jobs go on even where no server runs: an embedded platform works in this process."""
        ...

    def online(self) -> OnlineStore | None:
        """The online store of features where it can be read from here; None where the platform must be asked."""
        ...

    def __getattr__(self, service_name: str) -> Any: ...


def client_command(function: FunctionT) -> FunctionT:
    """Mark `def name(here: Here, ...)` of a desk's errand module as reachable from the SDK and the command line."""
    function.__errand__ = True  # type: ignore[attr-defined]
    return function


def add_flags(function: FunctionT, flags: Mapping[str, Any]) -> FunctionT:
    """Put flags that are said elsewhere, where they are at home, into the signature of an errand that takes **more."""
    import inspect

    signature = inspect.signature(function)
    own_parameters = [
        parameter for parameter in signature.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    flag_parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=flags[name]) for name in flags
    ]
    function.__signature__ = signature.replace(parameters=[*own_parameters, *flag_parameters])  # type: ignore[attr-defined]
    function.__annotations__ = {**function.__annotations__, **flags}
    return function


def python_only(function: FunctionT) -> FunctionT:
    """Mark an errand that only programs call: what it gives is nothing that a terminal could show."""
    function.__for_python__ = True  # type: ignore[attr-defined]
    return client_command(function)


def moves_bulk_data(function: FunctionT) -> FunctionT:
    """Mark an errand that moves gigabytes: a command that runs it keeps the memory it moves them through."""
    function.__moves_much__ = True  # type: ignore[attr-defined]
    return function


@cache
def list_client_commands(modules: tuple[str, ...]) -> dict[str, tuple[Operation, Callable[..., Any]]]:
    """Every errand of these modules by name, in the order they are written, with its function."""
    commands: dict[str, tuple[Operation, Callable[..., Any]]] = {}
    for module in modules:
        for name, function in vars(import_module(module)).items():
            if getattr(function, "__errand__", False):
                commands[name] = (describe_operation(name, function, _OPERATION_MARK), function)
    return commands


@cache
def find_client_command(modules: tuple[str, ...], name: str) -> tuple[Operation, Callable[..., Any]] | None:
    """One errand; modules after the one that has it are not loaded."""
    for module in modules:
        function = vars(import_module(module)).get(name)
        if function is not None and getattr(function, "__errand__", False):
            return describe_operation(name, function, _OPERATION_MARK), function
    return None


class NullProgress:
    """Nobody watches."""

    def task(self, text: str, total: int | None = None, unit: str = "B") -> "NullProgress":
        """A task that tells nobody."""
        del text, total, unit
        return self

    def note(self, text: str) -> None:
        """Nothing."""

    def advance(self, amount: int) -> None:
        """Nothing."""

    def resize(self, total: int | None) -> None:
        """Nothing."""

    def __enter__(self) -> "NullProgress":
        return self

    def __exit__(self, *exc: object) -> None:
        return None
