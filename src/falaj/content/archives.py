"""Archives as models come in them, looked at within bounds and never unpacked: what they list tells what they are."""

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

import msgspec

from falaj.core.errors import Invalid

MAX_ENTRIES = 100_000
MAX_ARRAYS = 10_000
MAX_LISTING_BYTES = 16 << 20
"""Bytes of an archive's list of entries, and of one file in it that says what it is."""
MAX_UNPACKED_BYTES = 1 << 30
MAX_UNPACK_RATIO = 100
"""An archive may unpack to ROOMY, or to so many times its own size, whichever is more."""
_ARRAY_HEADER_BYTES = 1 << 12
EXPORTED_REASON = "is a program of torch.export: loading it can run code"
_SAFE_MODULES = frozenset({"sklearn", "numpy", "scipy", "builtins", "collections"})
_SAFE_BUILTINS = frozenset(
    {"list", "dict", "tuple", "set", "frozenset", "int", "float", "complex", "bool", "str", "bytes", "slice", "type"}
)
_BROKEN_ARCHIVE_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError,
    OverflowError,
)  # fmt: skip


def inspect_archive(file: BinaryIO, size: int) -> tuple[str, str]:
    """The format of a model in a zip file and why loading it could run code; Invalid when it is hostile or broken."""
    _require_bounded_listing(file, size)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            require_safe_entry_names(entry.filename for entry in entries)
            unpacked_size, packed_size = (
                sum(zip_entry.file_size for zip_entry in entries),
                sum(zip_entry.compress_size for zip_entry in entries),
            )
            # entries that share their bytes add up to more than there is
            if packed_size > size or unpacked_size > max(MAX_UNPACKED_BYTES, MAX_UNPACK_RATIO * size):
                raise Invalid("it would unpack to far more than it is", "an archive like this is made to do harm")
            return _detect_format(archive, {entry.filename for entry in entries})
    except _BROKEN_ARCHIVE_ERRORS as error:
        raise Invalid("it is a broken archive", "save it again") from error


def require_safe_entry_names(names: Iterable[str]) -> None:
    """Invalid, with the name, unless an archive with these entries would unpack into one folder and nowhere else."""
    seen_names: set[str] = set()
    for name in names:
        parts = name.removesuffix("/").split("/")
        is_strange = "\\" in name or ":" in parts[0] or any(ord(char) < 32 for char in name) or len(name) > 4096
        if is_strange or {"", ".", ".."} & set(parts) or name in seen_names:
            raise Invalid(f"the archive has an entry {name!r:.200}", "names must be relative, plain and each its own")
        seen_names.add(name)
        if len(seen_names) > MAX_ENTRIES:
            raise Invalid("the archive has too many entries", f"at most {MAX_ENTRIES}")


def is_pickled_array(head: bytes) -> bool:
    """Whether an array in numpy's format holds Python objects, which numpy pickles. `head` is where it begins."""
    length_bytes = 4 if head[6:7] >= b"\x02" else 2
    length = int.from_bytes(head[8 : 8 + length_bytes], "little")
    if length > len(head) - 8 - length_bytes:
        raise Invalid("the header of an array is cut short or too long", "save it again")
    return bool(re.search(rb"['\"][<>|=]?O\d*['\"]", head[8 + length_bytes :][:length]))


def _require_bounded_listing(file: BinaryIO, size: int) -> None:
    """The list of entries is bounded before anything reads it whole."""
    file.seek(max(0, size - (1 << 16) - 128))
    last_bytes = file.read()
    record_start, length = last_bytes.rfind(b"PK\x05\x06"), 0
    try:
        length = struct.unpack_from("<I", last_bytes, record_start + 12)[0]
        if length == 0xFFFFFFFF and last_bytes[record_start - 76 : record_start - 72] == b"PK\x06\x06":
            length = struct.unpack_from("<Q", last_bytes, record_start - 36)[0]
    except struct.error:
        record_start = -1
    if record_start < 0 or length > MAX_LISTING_BYTES:
        raise Invalid("its list of entries is missing or too long", "save it again")


def _detect_format(archive: zipfile.ZipFile, names: set[str]) -> tuple[str, str]:
    def _read_entry(name: str, max_bytes: int) -> bytes:
        with archive.open(name) as member:
            return member.read(max_bytes)

    if any(name.partition("/")[2] == "models/model.json" for name in names) and not any(map(_is_machine_code, names)):
        return "export", EXPORTED_REASON
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        is_script = any("/code/" in name or name.endswith("constants.pkl") for name in names)
        return (
            ("torchscript", "is TorchScript: a program") if is_script else ("torch", "holds a pickle, as PyTorch saves")
        )
    if "config.json" in names and {"metadata.json", "model.weights.h5"} & names:
        lambda_note = " (it has a Lambda layer)" if b'"Lambda"' in _read_entry("config.json", MAX_LISTING_BYTES) else ""
        return "keras", f"is a Keras archive, which can name any function{lambda_note}"
    arrays = sorted(name for name in names if name.endswith(".npy"))
    if len(arrays) > MAX_ARRAYS:
        raise Invalid(f"it has {len(arrays)} arrays", f"at most {MAX_ARRAYS}")
    pickled_name = next((name for name in arrays if is_pickled_array(_read_entry(name, _ARRAY_HEADER_BYTES))), "")
    reason = f"holds pickled objects in {pickled_name!r:.100}" if pickled_name else ""
    if "schema.json" in names and len(arrays) == len(names) - 1:
        strange_type = _find_strange_type(_read_entry("schema.json", MAX_LISTING_BYTES))
        return "skops", reason or (
            f"asks for {strange_type!r:.100}, which is not of scikit-learn" if strange_type else ""
        )
    if arrays and len(arrays) == len(names):
        return "numpy", reason
    return "archive", "is an archive of no kind known here"


def _is_machine_code(name: str) -> bool:
    """Machine code, as torch packs it beside a program."""
    return "/data/aotinductor/" in name or name.endswith((".so", ".o", ".cubin"))


def _find_strange_type(schema: bytes) -> str:
    """The first type a skops file asks for that is neither plain data nor scikit-learn's; nothing when none is."""
    try:
        stack: list[Any] = [msgspec.json.decode(schema)]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid("its schema.json is not JSON", "save it again") from error
    while stack:
        schema_node = stack.pop()
        if isinstance(schema_node, list):
            stack += schema_node
        elif isinstance(schema_node, dict):
            stack += schema_node.values()
            for key, name_field in (("__module__", "__class__"), ("module_path", "function")):
                module, name = schema_node.get(key), str(schema_node.get(name_field, ""))
                if isinstance(module, str) and not _is_safe_type(module.partition(".")[0], name):
                    return f"{module}.{name}"
    return ""


def _is_safe_type(root_module: str, name: str) -> bool:
    return root_module in _SAFE_MODULES and (root_module != "builtins" or name in _SAFE_BUILTINS)
