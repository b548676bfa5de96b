"""What a model's files are, told by their content and never by running or unpacking them.

An allow-list: a format that only holds numbers and texts is named; whatever is not one of these may run code when it
is loaded, so it is kept and never loaded by us. To look for bad pickles instead would be a promise nobody can keep.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

import msgspec

from falaj.content.archives import look_inside, pickled_array
from falaj.content.onnx import external_data
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

MOST_FILES = 10_000
MOST_REASONS = 20
HEAD = 1 << 16
MOST_HEADER = 16 << 20
SAFE = ("safetensors", "onnx", "skops", "xgboost", "lightgbm", "catboost", "gguf", "tflite", "numpy")
CODE = ("export", "torchscript", "torch", "keras", "joblib", "pickle", "program", "archive", "other")
_RANK = {name: at for at, name in enumerate((*SAFE, *CODE, "json", "text"))}
_PROGRAMS = frozenset({".py", ".pyc", ".pyx", ".so", ".dll", ".dylib", ".sh", ".ipynb", ".jar", ".class", ".exe"})
_PICKLES = {
    ".pkl": "pickle",
    ".pickle": "pickle",
    ".dill": "pickle",
    ".joblib": "joblib",
    ".pt": "torch",
    ".pth": "torch",
}
_MAGIC = ((0, b"GGUF", "gguf"), (4, b"TFL3", "tflite"), (0, b"CBM1", "catboost"), (0, b"\x89HDF\r\n\x1a\n", "keras"))
_INERT = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"%PDF-", b"PAR1", b"ARROW1\0\0")
"""Pictures and tables that lie beside weights."""
_OLD_PICKLE = re.compile(
    rb"[\]}(l)]{0,8}(c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n([pq]\d*\n?)?[()]|([SV][^\n]*\n)+i[\w.]+\n\w+\n)"
)
"""A function named and something to call it with, in the protocols that look like text."""
_MADE_BY = (
    (b"joblib", "joblib"),
    (b"cloudpickle", "pickle"),
    (b"dill", "pickle"),
    (b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", "torch"),
)
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "BOOL": 8, "C64": 64,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a model is. `reasons` say why loading it could run code, file by file."""

    format: str
    code_bearing: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a safetensors file and where its bytes lie in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(slots=True)
class _Look:
    """One file being looked at."""

    path: Path
    file: BinaryIO
    size: int
    head: bytes
    inert: set[Path] = field(default_factory=set)
    """Files that this one holds to be its raw data."""


Finding = tuple[str, str]
"""A format, and why it could run code: nothing when it could not."""


def inspect(folder: Path) -> Inspected:
    """What the model in `folder` (or one file) is; Invalid, with the file named, when a file is hostile or broken."""
    found: dict[Path, Finding] = {}
    inert: set[Path] = set()
    for path in _files(folder):
        with _opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            look = _Look(path, file, size, file.read(HEAD))
            try:
                found[path] = _told(look)
            except Invalid as error:
                raise Invalid(f"{_name(path, folder)}: {error.message}", error.hint) from error
        inert |= look.inert
    kinds = {
        path: ("text", "") if kind == "other" and path.resolve() in inert else (kind, why)
        for path, (kind, why) in found.items()
    }
    reasons = [f"{_name(path, folder)} {why}" for path, (_, why) in kinds.items() if why]
    if len(reasons) > MOST_REASONS:
        reasons[MOST_REASONS:] = [f"and {len(reasons) - MOST_REASONS} more"]
    main = min((kind for kind, _ in kinds.values()), key=_RANK.__getitem__, default="other")
    return Inspected(main, bool(reasons), tuple(reasons))


def tensors(file: BinaryIO, size: int) -> dict[str, Tensor]:
    """The tensors of a safetensors file; Invalid unless its header is well formed and they fill the file exactly."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MOST_HEADER, size - 8):
        raise Invalid("its header is longer than the file or than any header is", "save it again")
    try:
        told = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        told.pop("__metadata__", None)
        found = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in told.items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Invalid("its header is not that of safetensors", "save it again") from error
    end = 0
    for name, one in sorted(found.items(), key=lambda item: item[1].data_offsets):
        # no gaps and no overlaps: nothing can hide between tensors or after them
        if one.data_offsets[0] != end or not _fits(one):
            raise Invalid(f"its tensor {name!r:.100} does not lie where it says", "save it again")
        end = one.data_offsets[1]
    base = 8 + length
    if base + end != size:
        raise Invalid("its tensors do not fill the file", "it is cut short, or something was added to it")
    return {
        name: Tensor(one.dtype, one.shape, base + one.data_offsets[0], base + one.data_offsets[1])
        for name, one in found.items()
    }


def _fits(one: _Entry) -> bool:
    bits = _BITS.get(one.dtype, 0)
    for side in one.shape:
        bits *= side
    size = one.data_offsets[1] - one.data_offsets[0]
    return (
        size >= 0
        and min(one.shape, default=0) >= 0
        and len(one.shape) <= 64
        and (bits == 8 * size or one.dtype not in _BITS)
    )


def _files(folder: Path) -> Iterator[Path]:
    """Regular files, links not followed, in order."""
    if folder.is_file():
        yield folder
        return
    count = 0
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ".falaj" or here != str(folder))  # a checkout's notes
        for name in sorted(names):
            path = Path(here, name)
            if path.is_symlink() or not path.is_file():
                continue
            count += 1
            if count > MOST_FILES:
                raise Invalid(f"a model of more than {MOST_FILES} files", "pack small files together")
            yield path


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _name(path: Path, folder: Path) -> str:
    return f"{str(path.relative_to(folder)) if path != folder else path.name!r:.200}"


def _told(look: _Look) -> Finding:
    suffix = look.path.suffix.lower()
    if suffix in _PROGRAMS or look.head[:2] == b"#!":
        return "program", "is a program"
    if suffix in _BY_NAME:
        return _BY_NAME[suffix](look)
    found = next(filter(None, (test(look) for test in _BY_CONTENT)), None)
    if suffix in _PICKLES and not (found and found[1]):
        return _PICKLES[suffix], "is named as pickles are, and a pickle runs code when it is loaded"
    return found or ("other", "is of no format known here")


def _safetensors(look: _Look) -> Finding:
    tensors(look.file, look.size)
    return "safetensors", ""


def _onnx(look: _Look) -> Finding:
    look.inert |= external_data(look.file, look.size, look.path.parent)
    return "onnx", ""


def _unnamed(look: _Look) -> Finding | None:
    """What goes by its name mostly, under another name: then that it does not fit is no error."""
    test = _safetensors if look.head[8:9] == b"{" else _onnx if look.head[:1] == b"\x08" else None
    try:
        return test(look) if test else None
    except Invalid as error:
        if "external" in error.message:
            raise
        return None


def _zip(look: _Look) -> Finding | None:
    return look_inside(look.file, look.size) if look.head[:4] in (b"PK\x03\x04", b"PK\x05\x06") else None


def _magic(look: _Look) -> Finding | None:
    for at, magic, name in _MAGIC:
        if look.head[at : at + len(magic)] == magic:
            return name, "is HDF5, in which Keras keeps functions too" if name == "keras" else ""
    return ("text", "") if look.head.startswith(_INERT) else None


def _pickle(look: _Look) -> Finding | None:
    head = look.head
    if not (head[:1] == b"\x80" and b"\x02" <= head[1:2] <= b"\x05") and not _OLD_PICKLE.match(head):
        return None
    made = next((name for word, name in _MADE_BY if word in head), "pickle")
    by = next((f" made by {word.decode()}" for word, _ in _MADE_BY[:3] if word in head), "")
    return made, f"is a pickle{by}: it runs code when it is loaded"


def _numpy(look: _Look) -> Finding | None:
    if look.head[:6] != b"\x93NUMPY":
        return None
    return "numpy", "holds pickled objects" if pickled_array(look.head) else ""


def _trees(look: _Look) -> Finding | None:
    """LightGBM's text, and XGBoost's UBJSON."""
    if re.match(rb"tree\r?\nversion=", look.head):
        return "lightgbm", ""
    return ("xgboost", "") if re.match(rb"\{[iUIlL].{0,8}learner", look.head, re.DOTALL) else None


def _json(look: _Look) -> Finding | None:
    """Read whole where it is small; of a large one the first words must do."""
    begun = look.head.lstrip()
    if not begun.startswith((b"{", b"[")):
        return None
    kind = "xgboost" if re.match(rb'\{\s*"(learner|version)"', begun) and b'"learner"' in look.head else "json"
    if look.size > MOST_HEADER:
        return kind, ""
    look.file.seek(0)
    try:
        told = msgspec.json.decode(look.file.read(MOST_HEADER))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    asks = isinstance(told, dict) and "auto_map" in told
    return kind, "names code to be loaded with it (auto_map)" if asks else ""


def _text(look: _Look) -> Finding | None:
    head = look.head
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if look.size <= HEAD or error.start < HEAD - 4:  # a letter may be cut in two where the head ends
            return None
    if b"\0" in head:
        return None
    return "text", "is YAML that makes Python objects" if b"!!python/" in head else ""


_BY_NAME: dict[str, Callable[[_Look], Finding]] = {".safetensors": _safetensors, ".onnx": _onnx}
_BY_CONTENT: tuple[Callable[[_Look], Finding | None], ...] = (
    _zip, _magic, _numpy, _pickle, _unnamed, _trees, _json, _text,
)  # fmt: skip
