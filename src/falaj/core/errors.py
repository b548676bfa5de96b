"""The one tree of errors.

FalajError
├── Invalid           the request itself is wrong; changing nothing else will help
├── Unauthenticated   nobody we know is asking
├── Denied            we know you, and the answer is no
├── NotFound          no such thing, or none that you may know of
├── Conflict          the world moved or the name is taken
│   └── StaleRevision you wrote over a revision that is no longer the newest
├── QuotaExceeded     too much, too fast, too large
├── Unavailable       something we need does not answer; the same call may work later
├── CorruptData       bytes are not what they were when we wrote them
├── UserCodeFailed    code that is not ours broke
└── UnrecordedChange  a transaction changed a record and said nothing: a bug in a room

Each class fixes `code` (on the wire), `status` (HTTP), `exit_code` (shell) and `retry`. Each instance says what is true
(`message`), what to do (`hint`) and about what (`ref`).
"""

from typing import ClassVar


class FalajError(Exception):
    """What every failure of Falaj is; catch this to catch them all."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retry: ClassVar[bool] = False

    def __init__(self, message: str, hint: str = "", ref: object = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.ref = str(ref)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def wire(self) -> dict[str, str]:
        """The four fields a client sees, and nothing more."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "ref": self.ref}


class Invalid(FalajError):
    """The request itself is wrong."""

    code, status, exit_code = "invalid", 400, 2


class Unauthenticated(FalajError):
    """Nobody we know is asking."""

    code, status, exit_code = "unauthenticated", 401, 3


class Denied(FalajError):
    """We know you, and the answer is no."""

    code, status, exit_code = "denied", 403, 4


class NotFound(FalajError):
    """No such thing, or none that you may know of."""

    code, status, exit_code = "not-found", 404, 5


class Conflict(FalajError):
    """The world moved, or the name is taken."""

    code, status, exit_code = "conflict", 409, 6


class StaleRevision(Conflict):
    """The revision you wrote over is no longer the newest; read again and retry."""

    code, retry = "stale", True


class QuotaExceeded(FalajError):
    """Too much, too fast or too large."""

    code, status, exit_code, retry = "quota-exceeded", 429, 7, True


class Unavailable(FalajError):
    """Something we need does not answer; the same call may work later."""

    code, status, exit_code, retry = "unavailable", 503, 8, True


class CorruptData(FalajError):
    """Bytes are not what they were when we wrote them."""

    code, status, exit_code = "corrupt", 500, 9


class UserCodeFailed(FalajError):
    """Code that is not ours broke."""

    code, status, exit_code = "user-code-failed", 422, 10


class UnrecordedChange(FalajError):
    """A transaction changed a record without an event."""

    code, status, exit_code = "silent-change", 500, 11


def missing_package_error(needed_by: str, extra: str, error: ImportError) -> Invalid:
    """Something that the small install leaves out: which package it needs, and how to get it."""
    return Invalid(f"{needed_by} needs the package {error.name}", f"pip install 'falaj[{extra}]'")


def error_from_wire(wire_fields: dict[str, str]) -> FalajError:
    """The error behind four wire fields: of the class the server raised, or FalajError for a code we do not know."""
    classes: list[type[FalajError]] = [FalajError]
    for error_type in classes:
        classes.extend(error_type.__subclasses__())
    error_class = next((candidate for candidate in classes if candidate.code == wire_fields.get("code")), FalajError)
    return error_class(
        wire_fields.get("message", "the server gave no reason"), wire_fields.get("hint", ""), wire_fields.get("ref", "")
    )
