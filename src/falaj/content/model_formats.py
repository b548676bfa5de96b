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

from falaj.content.archives import inspect_archive, is_pickled_array
from falaj.content.onnx_external_data import find_external_files
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

MAX_FILES = 10_000
MAX_REASONS = 20
HEAD_BYTES = 1 << 16
MAX_HEADER_BYTES = 16 << 20
SAFE_FORMATS = ("safetensors", "onnx", "skops", "xgboost", "lightgbm", "catboost", "gguf", "tflite", "numpy")
CODE_FORMATS = ("export", "torchscript", "torch", "keras", "joblib", "pickle", "program", "archive", "other")
_RANK_BY_FORMAT = {name: at for at, name in enumerate((*SAFE_FORMATS, *CODE_FORMATS, "json", "text"))}
_PROGRAM_SUFFIXES = frozenset(
    {".py", ".pyc", ".pyx", ".so", ".dll", ".dylib", ".sh", ".ipynb", ".jar", ".class", ".exe"}
)
_PICKLE_SUFFIXES = {
    ".pkl": "pickle",
    ".pickle": "pickle",
    ".dill": "pickle",
    ".joblib": "joblib",
    ".pt": "torch",
    ".pth": "torch",
}
_MAGIC_BYTES = (
    (0, b"GGUF", "gguf"),
    (4, b"TFL3", "tflite"),
    (0, b"CBM1", "catboost"),
    (0, b"\x89HDF\r\n\x1a\n", "keras"),
)
_INERT_PREFIXES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"%PDF-", b"PAR1", b"ARROW1\0\0")
"""Pictures and tables that lie beside weights."""
_TEXT_PICKLE_PATTERN = re.compile(
    rb"[\]}(l)]{0,8}(c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n([pq]\d*\n?)?[()]|([SV][^\n]*\n)+i[\w.]+\n\w+\n)"
)
"""A function named and something to call it with, in the protocols that look like text."""
_PICKLE_LIBRARIES = (
    (b"joblib", "joblib"),
    (b"cloudpickle", "pickle"),
    (b"dill", "pickle"),
    (b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", "torch"),
)
_BITS_BY_DTYPE = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "BOOL": 8, "C64": 64,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class InspectedModel:
    """What a model is. `reasons` say why loading it could run code, file by file."""

    format: str
    code_bearing: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """One tensor of a safetensors file and where its bytes lie in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class _TensorHeader(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(slots=True)
class _FileInspection:
    """One file being looked at."""

    path: Path
    file: BinaryIO
    size: int
    head: bytes
    inert: set[Path] = field(default_factory=set)
    """Files that this one holds to be its raw data."""


FormatFinding = tuple[str, str]
"""A format, and why it could run code: nothing when it could not."""


def inspect_model(folder: Path) -> InspectedModel:
    """What the model in `folder` (or one file) is; Invalid, with the file named, when a file is hostile or broken."""
    findings_by_path: dict[Path, FormatFinding] = {}
    raw_data_files: set[Path] = set()
    for path in _iterate_files(folder):
        with _open_regular_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            inspection = _FileInspection(path, file, size, file.read(HEAD_BYTES))
            try:
                findings_by_path[path] = _detect_format(inspection)
            except Invalid as error:
                raise Invalid(f"{_format_path(path, folder)}: {error.message}", error.hint) from error
        raw_data_files |= inspection.inert
    kinds_by_path = {
        path: ("text", "") if format_name == "other" and path.resolve() in raw_data_files else (format_name, reason)
        for path, (format_name, reason) in findings_by_path.items()
    }
    reasons = [f"{_format_path(path, folder)} {reason}" for path, (_, reason) in kinds_by_path.items() if reason]
    if len(reasons) > MAX_REASONS:
        reasons[MAX_REASONS:] = [f"and {len(reasons) - MAX_REASONS} more"]
    main_format = min(
        (format_name for format_name, _ in kinds_by_path.values()), key=_RANK_BY_FORMAT.__getitem__, default="other"
    )
    return InspectedModel(main_format, bool(reasons), tuple(reasons))


def read_tensor_table(file: BinaryIO, size: int) -> dict[str, TensorLocation]:
    """The tensors of a safetensors file; Invalid unless its header is well formed and they fill the file exactly."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
        raise Invalid("its header is longer than the file or than any header is", "save it again")
    try:
        header_fields = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        header_fields.pop("__metadata__", None)
        headers_by_name = {
            name: msgspec.json.decode(raw_header, type=_TensorHeader) for name, raw_header in header_fields.items()
        }
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Invalid("its header is not that of safetensors", "save it again") from error
    data_end = 0
    for name, tensor_header in sorted(headers_by_name.items(), key=lambda item: item[1].data_offsets):
        # no gaps and no overlaps: nothing can hide between tensors or after them
        if tensor_header.data_offsets[0] != data_end or not _has_matching_size(tensor_header):
            raise Invalid(f"its tensor {name!r:.100} does not lie where it says", "save it again")
        data_end = tensor_header.data_offsets[1]
    data_start = 8 + length
    if data_start + data_end != size:
        raise Invalid("its tensors do not fill the file", "it is cut short, or something was added to it")
    return {
        name: TensorLocation(
            tensor_header.dtype,
            tensor_header.shape,
            data_start + tensor_header.data_offsets[0],
            data_start + tensor_header.data_offsets[1],
        )
        for name, tensor_header in headers_by_name.items()
    }


def _has_matching_size(tensor_header: _TensorHeader) -> bool:
    bits = _BITS_BY_DTYPE.get(tensor_header.dtype, 0)
    for dimension in tensor_header.shape:
        bits *= dimension
    size = tensor_header.data_offsets[1] - tensor_header.data_offsets[0]
    return (
        size >= 0
        and min(tensor_header.shape, default=0) >= 0
        and len(tensor_header.shape) <= 64
        and (bits == 8 * size or tensor_header.dtype not in _BITS_BY_DTYPE)
    )


def _iterate_files(folder: Path) -> Iterator[Path]:
    """Regular files, links not followed, in order."""
    if folder.is_file():
        yield folder
        return
    count = 0
    for current_folder, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name != ".falaj" or current_folder != str(folder)
        )  # a checkout's notes
        for name in sorted(names):
            path = Path(current_folder, name)
            if path.is_symlink() or not path.is_file():
                continue
            count += 1
            if count > MAX_FILES:
                raise Invalid(f"a model of more than {MAX_FILES} files", "pack small files together")
            yield path


def _open_regular_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _format_path(path: Path, folder: Path) -> str:
    return f"{str(path.relative_to(folder)) if path != folder else path.name!r:.200}"


def _detect_format(inspection: _FileInspection) -> FormatFinding:
    suffix = inspection.path.suffix.lower()
    if suffix in _PROGRAM_SUFFIXES or inspection.head[:2] == b"#!":
        return "program", "is a program"
    if suffix in _TESTS_BY_SUFFIX:
        return _TESTS_BY_SUFFIX[suffix](inspection)
    content_finding = next(filter(None, (content_test(inspection) for content_test in _TESTS_BY_CONTENT)), None)
    if suffix in _PICKLE_SUFFIXES and not (content_finding and content_finding[1]):
        return _PICKLE_SUFFIXES[suffix], "is named as pickles are, and a pickle runs code when it is loaded"
    return content_finding or ("other", "is of no format known here")


def _test_safetensors(inspection: _FileInspection) -> FormatFinding:
    read_tensor_table(inspection.file, inspection.size)
    return "safetensors", ""


def _test_onnx(inspection: _FileInspection) -> FormatFinding:
    inspection.inert |= find_external_files(inspection.file, inspection.size, inspection.path.parent)
    return "onnx", ""


def _test_unnamed(inspection: _FileInspection) -> FormatFinding | None:
    """What goes by its name mostly, under another name: then that it does not fit is no error."""
    content_test = (
        _test_safetensors if inspection.head[8:9] == b"{" else _test_onnx if inspection.head[:1] == b"\x08" else None
    )
    try:
        return content_test(inspection) if content_test else None
    except Invalid as error:
        if "external" in error.message:
            raise
        return None


def _test_zip(inspection: _FileInspection) -> FormatFinding | None:
    return (
        inspect_archive(inspection.file, inspection.size)
        if inspection.head[:4] in (b"PK\x03\x04", b"PK\x05\x06")
        else None
    )


def _test_magic(inspection: _FileInspection) -> FormatFinding | None:
    for position, magic, name in _MAGIC_BYTES:
        if inspection.head[position : position + len(magic)] == magic:
            return name, "is HDF5, in which Keras keeps functions too" if name == "keras" else ""
    return ("text", "") if inspection.head.startswith(_INERT_PREFIXES) else None


def _test_pickle(inspection: _FileInspection) -> FormatFinding | None:
    first_bytes = inspection.head
    if not (first_bytes[:1] == b"\x80" and b"\x02" <= first_bytes[1:2] <= b"\x05") and not _TEXT_PICKLE_PATTERN.match(
        first_bytes
    ):
        return None
    format_name = next((name for library_mark, name in _PICKLE_LIBRARIES if library_mark in first_bytes), "pickle")
    library_text = next(
        (
            f" made by {library_mark.decode()}"
            for library_mark, _ in _PICKLE_LIBRARIES[:3]
            if library_mark in first_bytes
        ),
        "",
    )
    return format_name, f"is a pickle{library_text}: it runs code when it is loaded"


def _test_numpy(inspection: _FileInspection) -> FormatFinding | None:
    if inspection.head[:6] != b"\x93NUMPY":
        return None
    return "numpy", "holds pickled objects" if is_pickled_array(inspection.head) else ""


def _test_tree_models(inspection: _FileInspection) -> FormatFinding | None:
    """LightGBM's text, and XGBoost's UBJSON."""
    if re.match(rb"tree\r?\nversion=", inspection.head):
        return "lightgbm", ""
    return ("xgboost", "") if re.match(rb"\{[iUIlL].{0,8}learner", inspection.head, re.DOTALL) else None


def _test_json(inspection: _FileInspection) -> FormatFinding | None:
    """Read whole where it is small; of a large one the first words must do."""
    stripped_head = inspection.head.lstrip()
    if not stripped_head.startswith((b"{", b"[")):
        return None
    format_name = (
        "xgboost"
        if re.match(rb'\{\s*"(learner|version)"', stripped_head) and b'"learner"' in inspection.head
        else "json"
    )
    if inspection.size > MAX_HEADER_BYTES:
        return format_name, ""
    inspection.file.seek(0)
    try:
        document = msgspec.json.decode(inspection.file.read(MAX_HEADER_BYTES))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    names_code = isinstance(document, dict) and "auto_map" in document
    return format_name, "names code to be loaded with it (auto_map)" if names_code else ""


def _test_text(inspection: _FileInspection) -> FormatFinding | None:
    first_bytes = inspection.head
    try:
        first_bytes.decode("utf-8")
    except UnicodeDecodeError as error:
        if (
            inspection.size <= HEAD_BYTES or error.start < HEAD_BYTES - 4
        ):  # a letter may be cut in two where the head ends
            return None
    if b"\0" in first_bytes:
        return None
    return "text", "is YAML that makes Python objects" if b"!!python/" in first_bytes else ""


_TESTS_BY_SUFFIX: dict[str, Callable[[_FileInspection], FormatFinding]] = {
    ".safetensors": _test_safetensors,
    ".onnx": _test_onnx,
}
_TESTS_BY_CONTENT: tuple[Callable[[_FileInspection], FormatFinding | None], ...] = (
    _test_zip, _test_magic, _test_numpy, _test_pickle, _test_unnamed, _test_tree_models, _test_json, _test_text,
)  # fmt: skip
