"""Other people's code: what it raises made into our errors, and what it says kept down."""

import logging
import warnings
from types import TracebackType

from falaj.core.errors import FalajError, UserCodeFailed


class guarded:  # noqa: N801 - read as a statement: `with guarded("the export"):`
    """Whatever a library or the model's own code raises inside is UserCodeFailed, with its first line."""

    def __init__(self, what: str, hint: str = "") -> None:
        self._what, self._hint = what, hint
        self._warnings = warnings.catch_warnings()

    def __enter__(self) -> None:
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._warnings.__exit__(kind, error, at)
        if isinstance(error, Exception) and not isinstance(error, FalajError):
            said = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            raise UserCodeFailed(f"{self._what} failed: {type(error).__name__}: {said}", self._hint) from error


def quiet() -> None:
    """Libraries say only what is wrong."""
    logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
