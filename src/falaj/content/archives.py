"""Archives as models come in them, looked at within bounds and never unpacked: what they list tells what they are."""

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

import msgspec

from falaj.core.errors import Invalid

MOST_ENTRIES = 100_000
MOST_ARRAYS = 10_000
MOST_LIST = 16 << 20
"""Bytes of an archive's list of entries, and of one file in it that says what it is."""
ROOMY = 1 << 30
MOST_RATIO = 100
"""An archive may unpack to ROOMY, or to so many times its own size, whichever is more."""
_ARRAY_HEAD = 1 << 12
EXPORTED = "is a program of torch.export: loading it can run code"
_OURS = frozenset({"sklearn", "numpy", "scipy", "builtins", "collections"})
_PLAIN = frozenset(
    {"list", "dict", "tuple", "set", "frozenset", "int", "float", "complex", "bool", "str", "bytes", "slice", "type"}
)
_BROKEN = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError,
    OverflowError,
)  # fmt: skip


def look_inside(file: BinaryIO, size: int) -> tuple[str, str]:
    """The format of a model in a zip file and why loading it could run code; Invalid when it is hostile or broken."""
    _check_list(file, size)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            check_entry_names(entry.filename for entry in entries)
            whole, packed = sum(one.file_size for one in entries), sum(one.compress_size for one in entries)
            # entries that share their bytes add up to more than there is
            if packed > size or whole > max(ROOMY, MOST_RATIO * size):
                raise Invalid("it would unpack to far more than it is", "an archive like this is made to do harm")
            return _told(archive, {entry.filename for entry in entries})
    except _BROKEN as error:
        raise Invalid("it is a broken archive", "save it again") from error


def check_entry_names(names: Iterable[str]) -> None:
    """Invalid, with the name, unless an archive with these entries would unpack into one folder and nowhere else."""
    seen: set[str] = set()
    for name in names:
        parts = name.removesuffix("/").split("/")
        strange = "\\" in name or ":" in parts[0] or any(ord(char) < 32 for char in name) or len(name) > 4096
        if strange or {"", ".", ".."} & set(parts) or name in seen:
            raise Invalid(f"the archive has an entry {name!r:.200}", "names must be relative, plain and each its own")
        seen.add(name)
        if len(seen) > MOST_ENTRIES:
            raise Invalid("the archive has too many entries", f"at most {MOST_ENTRIES}")


def pickled_array(head: bytes) -> bool:
    """Whether an array in numpy's format holds Python objects, which numpy pickles. `head` is where it begins."""
    wide = 4 if head[6:7] >= b"\x02" else 2
    length = int.from_bytes(head[8 : 8 + wide], "little")
    if length > len(head) - 8 - wide:
        raise Invalid("the header of an array is cut short or too long", "save it again")
    return bool(re.search(rb"['\"][<>|=]?O\d*['\"]", head[8 + wide :][:length]))


def _check_list(file: BinaryIO, size: int) -> None:
    """The list of entries is bounded before anything reads it whole."""
    file.seek(max(0, size - (1 << 16) - 128))
    tail = file.read()
    at, length = tail.rfind(b"PK\x05\x06"), 0
    try:
        length = struct.unpack_from("<I", tail, at + 12)[0]
        if length == 0xFFFFFFFF and tail[at - 76 : at - 72] == b"PK\x06\x06":
            length = struct.unpack_from("<Q", tail, at - 36)[0]
    except struct.error:
        at = -1
    if at < 0 or length > MOST_LIST:
        raise Invalid("its list of entries is missing or too long", "save it again")


def _told(archive: zipfile.ZipFile, names: set[str]) -> tuple[str, str]:
    def read(name: str, most: int) -> bytes:
        with archive.open(name) as member:
            return member.read(most)

    if any(name.partition("/")[2] == "models/model.json" for name in names) and not any(map(_compiled, names)):
        return "export", EXPORTED
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        script = any("/code/" in name or name.endswith("constants.pkl") for name in names)
        return ("torchscript", "is TorchScript: a program") if script else ("torch", "holds a pickle, as PyTorch saves")
    if "config.json" in names and {"metadata.json", "model.weights.h5"} & names:
        with_lambda = " (it has a Lambda layer)" if b'"Lambda"' in read("config.json", MOST_LIST) else ""
        return "keras", f"is a Keras archive, which can name any function{with_lambda}"
    arrays = sorted(name for name in names if name.endswith(".npy"))
    if len(arrays) > MOST_ARRAYS:
        raise Invalid(f"it has {len(arrays)} arrays", f"at most {MOST_ARRAYS}")
    pickled = next((name for name in arrays if pickled_array(read(name, _ARRAY_HEAD))), "")
    why = f"holds pickled objects in {pickled!r:.100}" if pickled else ""
    if "schema.json" in names and len(arrays) == len(names) - 1:
        strange = _strange_type(read("schema.json", MOST_LIST))
        return "skops", why or (f"asks for {strange!r:.100}, which is not of scikit-learn" if strange else "")
    if arrays and len(arrays) == len(names):
        return "numpy", why
    return "archive", "is an archive of no kind known here"


def _compiled(name: str) -> bool:
    """Machine code, as torch packs it beside a program."""
    return "/data/aotinductor/" in name or name.endswith((".so", ".o", ".cubin"))


def _strange_type(schema: bytes) -> str:
    """The first type a skops file asks for that is neither plain data nor scikit-learn's; nothing when none is."""
    try:
        stack: list[Any] = [msgspec.json.decode(schema)]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid("its schema.json is not JSON", "save it again") from error
    while stack:
        one = stack.pop()
        if isinstance(one, list):
            stack += one
        elif isinstance(one, dict):
            stack += one.values()
            for key, word in (("__module__", "__class__"), ("module_path", "function")):
                module, name = one.get(key), str(one.get(word, ""))
                if isinstance(module, str) and not _known(module.partition(".")[0], name):
                    return f"{module}.{name}"
    return ""


def _known(root: str, name: str) -> bool:
    return root in _OURS and (root != "builtins" or name in _PLAIN)
