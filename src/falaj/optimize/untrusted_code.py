"""Other people's code: what it raises made into our errors, and what it says kept down."""

import logging
import warnings
from types import TracebackType

from falaj.core.errors import FalajError, UserCodeFailed


class wrap_user_errors:  # noqa: N801 - read as a statement: `with guarded("the export"):`
    """Whatever a library or the model's own code raises inside is UserCodeFailed, with its first line."""

    def __init__(self, action: str, hint: str = "") -> None:
        self._action, self._hint = action, hint
        self._warnings = warnings.catch_warnings()

    def __enter__(self) -> None:
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._warnings.__exit__(kind, error, trace)
        if isinstance(error, Exception) and not isinstance(error, FalajError):
            message = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            raise UserCodeFailed(f"{self._action} failed: {type(error).__name__}: {message}", self._hint) from error


def silence_libraries() -> None:
    """Libraries say only what is wrong."""
    logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
