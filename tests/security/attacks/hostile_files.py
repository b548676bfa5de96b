"""Generates hostile files for the parser corpus: bombs, deep nesting, lying sizes, overflows and outside references.

Every function returns files by case name. Nothing is stored in the repository: a scanner would report it, rightly.
"""

import gzip
import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

Content = bytes | Callable[[], bytes]
"""The bytes of a file, or what makes them where they are many: nothing large is made while tests are collected."""
Files = Mapping[str, Content]
"""The files of one case by their path in the folder that is published."""
GIB = 1 << 30


def generate_tables() -> dict[str, Files]:
    """Tables, as an attacker publishes them in a dataset."""
    deep_json = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    return {
        **{f"csv {name}": {"t.csv": data} for name, data in _generate_csv().items()},
        "csv gzip bomb": {"t.csv.gz": lambda: _repeat_gzip(b"1,2,3\n" * 170_000, GIB // 2)},
        "csv gzip cut off": {"t.csv.gz": gzip.compress(b"a,b\n" * 1000)[:-20]},
        "csv that is zstd in name only": {"t.csv.zst": b"a,b\n1,2\n"},
        "json deep": {"t.jsonl": deep_json},
        "json duplicate keys": {"t.jsonl": b'{"a": 1, "a": {"b": 2}, "a": [3]}\n' * 3},
        "json huge numbers": {"t.jsonl": b'{"a": 1e999999, "b": ' + b"9" * 100_000 + b"}\n"},
        "json invalid text": {"t.jsonl": b'{"a": "\xff\xfe\\ud800"}\n{"\xc3": 1}\n'},
        "json many columns": {"t.jsonl": json.dumps({f"c{n}": n for n in range(20_000)}).encode() + b"\n"},
        **{f"parquet {name}": {"t.parquet": data} for name, data in _generate_parquet().items()},
        **{f"arrow {name}": {"t.arrow": data} for name, data in _generate_arrow().items()},
    }


def generate_models() -> dict[str, Files]:
    """Files of models, as an attacker publishes them or a job leaves them."""
    return {
        **{f"safetensors {name}": {"m.safetensors": data} for name, data in _generate_safetensors().items()},
        **{f"onnx {name}": {"m.onnx": data} for name, data in _generate_onnx().items()},
        **{f"zip {name}": {"m.zip": data} for name, data in _generate_zip().items()},
        **{f"yaml {name}": {"MLmodel": data, "m.json": b"{}"} for name, data in generate_yaml().items()},
        **{f"card {name}": {"card.json": data, "m.json": b"{}"} for name, data in generate_json_bodies().items()},
        "card run that is no text": {"card.json": b'{"run": "\xff"}', "m.json": b"{}"},
        "card signature that is no text": {"card.json": b'{"signature": {"\xff": "\xfe"}}', "m.json": b"{}"},
        "card of a link's name": {
            "card.json": b'{"command": "\\u0000 ../../x", "metrics": {"a": 1e308}}',
            "m.json": b"{}",
        },
        "json deep": {"m.json": b"[" * 200_000 + b"]" * 200_000},
        "json deep config": {"config.json": b'{"auto_map":' * 50_000 + b"1" + b"}" * 50_000},
        "numpy header": {"m.npy": b"\x93NUMPY\x02\0" + struct.pack("<I", 0xFFFFFFF0) + b"{" * 1000},
        "gguf counts": {"m.gguf": b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1 << 62)},
        "hdf5": {"m.h5": b"\x89HDF\r\n\x1a\n" + b"\xff" * 4096},
        "image bomb": {"m.png": _make_png_bomb(), "m.json": b"{}"},
        "pickle": {"m.pkl": b"cos\nsystem\n(S'touch /tmp/falaj-corpus-pwned'\ntR."},
    }


def generate_archives() -> dict[str, bytes]:
    """Tar layers, as a registry serves them."""
    block, huge = tarfile.TarInfo("disk"), tarfile.TarInfo("a")
    block.type, block.devmajor, block.devminor = tarfile.BLKTYPE, 8, 0
    huge.size = 1 << 60
    return {
        "climbing name": make_tar(("../../evil", b"x")),
        "absolute name": make_tar(("/etc/cron.d/evil", b"x")),
        "climbing name in a pax header": _make_pax("../../evil"),
        "absolute name in a pax header": _make_pax("/tmp/evil"),
        "block device": block.tobuf() + bytes(1024),
        "size of an exbyte": huge.tobuf(tarfile.GNU_FORMAT) + bytes(1024),
        "symbolic link": _make_link(tarfile.SYMTYPE, "/etc/passwd"),
        "hard link": _make_link(tarfile.LNKTYPE, "/etc/passwd"),
        "hard link to its own member": make_tar(("a", b"x"))[:1024] + _make_link(tarfile.LNKTYPE, "a"),
        "file below a link": _make_link(tarfile.SYMTYPE, "/tmp")[:512] + make_tar(("link/evil", b"x")),
        "bad checksum": bytes(148) + b"7777777\0" + bytes(4096),
        "invalid text in a name": make_tar(("a", b"x")).replace(b"a", b"\xff", 1),
    }


def generate_json_bodies() -> dict[str, bytes]:
    """Bodies of API calls, where an object is expected."""
    return {
        "deep": b'{"a":' * 100_000,
        "deep and closed": b'{"name":' + b"[" * 5000 + b"]" * 5000 + b"}",
        "not text": b'{"name": "\xff\xfe"}',
        "lone surrogate": b'{"name": "\\ud800"}',
        "huge number": b'{"limit": ' + b"9" * 100_000 + b"}",
        "infinite number": b'{"limit": 1e999}',
        "not a number": b'{"limit": NaN}',
        "duplicate keys": b'{"limit": 1, "limit": "two"}',
        "array": b"[]",
        "cut off": b'{"name": "a',
        "empty": b"",
        "nul": b"\0",
        "yaml": b"name: &a [*a]",
    }


def generate_protobuf() -> dict[str, bytes]:
    """Messages where a feature request is expected."""
    nested = b""
    for _ in range(5000):
        nested = _field(2, nested)
    return {
        "deep groups": b"\x13" * 50_000,
        "deep messages": nested,
        "length of an exbyte": b"\x0a" + _varint(1 << 60) + b"x",
        "varint without end": b"\xff" * 100,
        "invalid text": _field(1, b"\xff\xfe"),
        "field zero": b"\x00\x01",
        "wrong wire type": b"\x08\x01\x12\x7f",
        "many empty columns": _field(2, b"") * 100_000,
        "no reference": _field(1, b"../../etc/passwd"),
    }


def make_tar(*members: tuple[str, bytes]) -> bytes:
    """A tar of plain files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def _make_pax(path: str) -> bytes:
    info = tarfile.TarInfo("innocent")
    info.size, info.pax_headers = 1, {"path": path}
    return info.tobuf(tarfile.PAX_FORMAT) + b"x" + bytes(511 + 1024)


def _make_link(kind: bytes, target: str) -> bytes:
    info = tarfile.TarInfo("link")
    info.type, info.linkname = kind, target
    return info.tobuf() + bytes(1024)


def _repeat_gzip(piece: bytes, size: int) -> bytes:
    """Gzip members one after the other: small, cheap to make, and `size` bytes when it is unpacked."""
    return gzip.compress(piece, 9) * (size // len(piece))


def _generate_csv() -> dict[str, Content]:
    return {
        "open quote": lambda: b'a,b\n1,"' + b"x" * (8 << 20),
        "long line": lambda: b"a,b\n" + b"x" * (32 << 20) + b",1\n",
        "many columns": lambda: b",".join(b"c%d" % n for n in range(200_000)) + b"\n",
        "invalid text": b"a,b\n\xff\xfe,\xc3\x28\n",
        "nul bytes": b"a,b\n1,\0\0\n\0\0\0\n",
        "formula": b"a,b\n=cmd|'/c calc'!A1,@SUM(1)\n",
        "sql in the header": b"\"a'; COPY (SELECT 1) TO '/tmp/falaj-corpus-pwned'; --\",b\n1,2\n",
    }


def _generate_parquet() -> dict[str, Content]:
    good = _write_parquet(pa.table({"a": list(range(1000)), "b": [f"text {n}" for n in range(1000)]}))
    length = int.from_bytes(good[-8:-4], "little")
    return {
        "zstd bomb": lambda: _write_parquet(pa.table({"a": ["x" * (256 << 20)]}), compression="zstd"),
        "dictionary bomb": lambda: _write_parquet(pa.table({"a": _make_dictionary(3_000_000, "y" * 1000)})),
        "rows that are not there": _replace_once(good, b"\xd0\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        "footer length above the file": good[:-8] + struct.pack("<I", 0xFFFFFFFF) + b"PAR1",
        "footer length zero": good[:-8] + struct.pack("<I", 0) + b"PAR1",
        "encrypted footer": good[:-4] + b"PARE",
        "footer list of a billion": _make_footer(b"\x15\x04\x19\xfc\xff\xff\xff\xff\x07"),
        "deep schema": _make_deep_parquet(50_000),
        "no footer": b"PAR1PAR1",
        **{f"mutant {seed}": _mutate(good, seed, len(good) - length - 8) for seed in range(3)},
    }


def _make_dictionary(rows: int, text: str) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(memoryview(bytes(rows)), pa.int8()), [text])


def _write_parquet(table: pa.Table, **options: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def _replace_once(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace the last occurrence in the footer, and correct the footer's length."""
    at = data.rfind(old)
    changed = data[:at] + new + data[at + len(old) : -8]
    return changed + struct.pack("<I", int.from_bytes(data[-8:-4], "little") + len(new) - len(old)) + b"PAR1"


def _make_footer(footer: bytes) -> bytes:
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _make_deep_parquet(depth: int) -> bytes:
    group, leaf = b"\x48\x01g\x15\x02\0", b"\x15\x02\x25\x02\x18\x01x\0"
    schema = b"\xfc" + _varint(depth + 1) + group * depth + leaf
    return _make_footer(b"\x15\x02\x19" + schema + b"\x16\0\x19\x0c\0")


def _mutate(data: bytes, seed: int, start: int) -> bytes:
    chance, changed = random.Random(seed), bytearray(data)
    for _ in range(24):
        changed[chance.randrange(start, len(data) - 8)] = chance.randrange(256)
    return bytes(changed)


def _generate_arrow() -> dict[str, bytes]:
    table = pa.table({"a": list(range(100)), "b": ["x"] * 100})
    file, stream = io.BytesIO(), io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(stream, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    good, packed = file.getvalue(), stream.getvalue()
    deep = pa.int8()
    for _ in range(60):
        deep = pa.list_(deep)
    return {
        "deep type": pa.schema([("a", deep)]).serialize().to_pybytes(),
        "message of two gigabytes": b"\xff\xff\xff\xff" + struct.pack("<i", 0x7FFFFFF0) + b"x" * 64,
        "negative message": b"\xff\xff\xff\xff" + struct.pack("<i", -8) + b"x" * 64,
        "footer above the file": good[:-10] + struct.pack("<i", 0x7FFFFFFF) + b"ARROW1",
        "offsets out of range": good.replace(struct.pack("<ii", 1, 2), struct.pack("<ii", 1 << 30, 2)),
        "buffer that unpacks to an exbyte": packed.replace(struct.pack("<q", 800), struct.pack("<q", 1 << 60)),
        "cut off": good[: len(good) // 2],
        **{f"mutant {seed}": _mutate(good, seed, 8) for seed in range(2)},
    }


def _generate_safetensors() -> dict[str, bytes]:
    def make(header: object, body: bytes = b"") -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + body

    def tensor(shape: list[int], start: int, stop: int) -> dict[str, object]:
        return {"dtype": "F32", "shape": shape, "data_offsets": [start, stop]}

    return {
        "header of 8 exbytes": struct.pack("<Q", 1 << 63) + b"{}",
        "deep header": make(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "overlap": make({"a": tensor([1], 0, 4), "b": tensor([1], 0, 4)}, bytes(4)),
        "shape overflow": make({"a": tensor([1 << 62, 4], 0, 4)}, bytes(4)),
        "negative shape": make({"a": tensor([-1, -1], 0, 4)}, bytes(4)),
        "hidden bytes": make({"a": tensor([1], 0, 4)}, bytes(4) + b"#!/bin/sh"),
        "duplicate keys": make(b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "a": 7}', bytes(4)),
        "invalid text": make(b'{"\xff": 1}'),
    }


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _generate_onnx() -> dict[str, Content]:
    def external(location: bytes) -> bytes:
        entry = _field(1, b"location") + _field(2, location)
        return _field(1, 9) + _field(7, _field(5, _field(13, entry) + _field(14, 1)))

    deep = b""
    for _ in range(200):
        deep = _field(1, _field(5, _field(6, deep)))
    return {
        "data outside": external(b"../../../../etc/passwd"),
        "data at an absolute path": external(b"/etc/passwd"),
        "data of the kernel": external(b"/dev/zero"),
        "data with a drive": external(b"C:\\windows\\win.ini"),
        "data by url": external(b"file:///etc/passwd"),
        "deep graphs": _field(1, 9) + _field(7, deep),
        "varint without end": b"\x08" + b"\xff" * 64,
        "length of an exbyte": b"\x3a" + _varint(1 << 60) + b"x",
        "group that never ends": b"\x08\x09" + b"\x3b" * 1000,
        "many parts": lambda: _field(7, b"") + b"\x08\x01" * 2_100_000,
    }


def _generate_zip() -> dict[str, Content]:
    def make(names: list[str], content: bytes = b"") -> bytes:
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.writestr(name, content)
        return data.getvalue()

    link = zipfile.ZipInfo("a.npy")
    link.external_attr = 0o120777 << 16
    linked = io.BytesIO()
    with zipfile.ZipFile(linked, "w") as archive:
        archive.writestr(link, "/etc/passwd")

    def make_lying() -> bytes:
        bomb = bytearray(make(["schema.json"], b" " * (64 << 20)))
        at = bomb.rfind(b"PK\x01\x02")
        bomb[at + 24 : at + 28] = struct.pack("<I", 0xFFFFFFF0)
        return bytes(bomb)

    return {
        "climbing name": make(["../../evil.npy"]),
        "absolute name": make(["/etc/evil.npy"]),
        "symbolic link": linked.getvalue(),
        "overlapping entries": lambda: _make_overlapping_zip(200, 16 << 20),
        "declared size": make_lying,
        "json bomb": lambda: make(["schema.json"], b"[" * (32 << 20)),
        "many entries": lambda: make([f"{n}.npy" for n in range(20_001)]),
        "zip in a zip": make(["a.zip"], make(["b.zip"], make(["c.npy"], bytes(1 << 20)))),
        "end record that lies": make(["a.npy"])[:-10] + struct.pack("<IIH", 0xFFFFFFFF, 0xFFFFFFFF, 0),
    }


def _make_overlapping_zip(entries: int, size: int) -> bytes:
    """Entries that all point to one compressed kernel: what unpacks is `entries` times larger than what is there."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    kernel = packer.compress(bytes(size)) + packer.flush()
    crc = zlib.crc32(bytes(size))
    sizes = struct.pack("<III", crc, len(kernel), size)
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 0) + sizes + struct.pack("<HH", 5, 0) + b"a.npy"
    central = b"".join(
        b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 0) + sizes
        + struct.pack("<HHHHHII", 7, 0, 0, 0, 0, 0, 0) + b"%03d.npy" % number
        for number in range(entries)
    )  # fmt: skip
    end = struct.pack("<HHHHIIH", 0, 0, entries, entries, len(central), len(local) + len(kernel), 0)
    return local + kernel + central + b"PK\x05\x06" + end


def generate_yaml() -> dict[str, bytes]:
    """Documents in YAML, as MLmodel files and as projects of other tools."""
    laughs = [b'a0: &a0 ["lol","lol"]'] + [
        b"a%d: &a%d [%s]" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)
    ]
    return {
        "billion laughs": b"\n".join(laughs) + b"\nsignature: *a11\n",
        "alias of itself": b"signature: &a [*a]\n",
        "merge of merges": b"a: &a {x: 1}\n" + b"b: {<<: [*a, *a, *a]}\n" * 5000,
        "python object": b"flavors: !!python/object/apply:os.system ['touch /tmp/falaj-corpus-pwned']\n",
        "lone surrogate": b'signature: {inputs: "\\ud800"}\n',
        "json inside that is deep": b"signature: {inputs: '" + b"[" * 100_000 + b"'}\n",
        "deep flow": b"signature: " + b"[" * 20_000,
        "invalid text": b"\xff\xfe\0\0",
        "long key": b"? " + b"k" * 500_000 + b"\n: 1\n",
    }


def _make_png_bomb() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 0x7FFFFFFF, 0x7FFFFFFF, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
