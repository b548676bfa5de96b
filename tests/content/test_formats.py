"""What a model's files are: told by content, nothing run or unpacked, whatever the bytes."""

import contextlib
import gzip
import io
import json
import os
import pickle
import random
import struct
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.content import archives, model_formats, onnx_external_data
from falaj.content.model_formats import InspectedModel, inspect_model
from falaj.core.errors import Invalid

CANARY = "formats-canary"


class Gadget:
    """What runs when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (CANARY,)


def safetensors(tensors: Mapping[str, tuple[str, list[int], bytes]], **metadata: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def zipped(entries: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return made.getvalue()


def npy(descr: str, data: bytes = b"", version: int = 1) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def proto(*fields: tuple[int, int | bytes]) -> bytes:
    """Protobuf by hand."""

    def varint(value: int) -> bytes:
        out = b""
        while value > 127:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])

    made = b""
    for number, value in fields:
        if isinstance(value, int):
            made += varint(number << 3) + varint(value)
        else:
            made += varint(number << 3 | 2) + varint(len(value)) + value
    return made


def tensor(location: str | bytes = b"", **said: str) -> bytes:
    if not location:
        return proto((1, 4), (2, 1), (9, b"\0" * 16))
    raw = location.encode() if isinstance(location, str) else location
    pairs = {"offset": b"0", "location": raw, **{key: value.encode() for key, value in said.items()}}
    return proto((2, 1), *((13, proto((1, key.encode()), (2, value))) for key, value in pairs.items()), (14, 1))


def onnx_file(*initializers: bytes, nodes: tuple[bytes, ...] = ()) -> bytes:
    graph = proto(*[(1, node) for node in nodes], (2, b"g"), *[(5, one) for one in initializers])
    return proto((1, 9), (2, b"falaj"), (7, graph), (8, proto((2, 17))))


WEIGHTS = safetensors({"w": ("F32", [2, 2], b"\1" * 16), "b": ("F16", [3], b"\2" * 6)}, made="by hand")
SKOPS = {
    "__class__": "LogisticRegression",
    "__module__": "sklearn.linear_model",
    "content": {"C": [{"__module__": "builtins", "__class__": "dict"}]},
}
SAFE: dict[str, tuple[str, bytes]] = {
    "safetensors": ("m.safetensors", WEIGHTS),
    "safetensors by content": ("weights.bin", WEIGHTS),
    "onnx": ("m.onnx", onnx_file(tensor())),
    "onnx by content": ("m.model", onnx_file(tensor())),
    "skops": ("m.skops", zipped({"schema.json": json.dumps(SKOPS).encode(), "1.npy": npy("'<f8'")})),
    "xgboost": ("m.json", b'{"learner":{"gradient_booster":{}},"version":[2,1,0]}'),
    "xgboost ubjson": ("m.ubj", b"{L\0\0\0\0\0\0\0\x07learner{}}"),
    "lightgbm": ("m.txt", b"tree\nversion=v4\nnum_class=1\n"),
    "json": ("m.json", b'{"coef": [1, 2]}'),
    "text": ("README.md", "# نموذج\n".encode()),
    "text, a list of words": ("vocab.txt", b"cat\ndog\nRabbit\n[CLS]\n"),
    "numpy": ("m.npy", npy("'<f4'", b"\0" * 4)),
    "numpy, several": ("m.npz", zipped({"a.npy": npy("'<f4'"), "b.npy": npy("'<i8'", version=2)})),
    "gguf": ("m.gguf", b"GGUF\3\0\0\0" + b"\0" * 40),
}
CODE: dict[str, tuple[str, bytes]] = {
    **{f"pickle {n}": ("m.pkl", pickle.dumps(Gadget(), n)) for n in range(6)},
    **{f"pickle {n} unnamed": ("m.data", pickle.dumps(Gadget(), n)) for n in range(6)},
    "pickle by instance": ("m.bin", b"(S'x'\nios\nmkdir\n."),
    "pickle by name": ("m.pickle", b"hello"),
    "joblib": ("m.joblib", pickle.dumps(["joblib.numpy_pickle"])),
    "joblib, compressed": ("m.joblib", zlib.compress(pickle.dumps([1]))),
    "torch": ("m.pt", zipped({"m/data.pkl": pickle.dumps(Gadget()), "m/data/0": b"\0" * 8}, zipfile.ZIP_STORED)),
    "torch, before zip": ("m.pth", pickle.dumps(0x1950A86A20F9469CFC6C, 2)),
    "torchscript": ("m.ts", zipped({"m/data.pkl": b"", "m/code/__torch__.py": b"", "m/constants.pkl": b""})),
    "export": ("m.pt2", zipped({"m/models/model.json": b"{}", "m/archive_format": b"pt2", "m/data/weights/w": b""})),
    "archive with machine code": ("m.pt2", zipped({"m/models/model.json": b"{}", "m/data/aotinductor/m/a.so": b""})),
    "keras": ("m.keras", zipped({"config.json": b'{"class_name": "Lambda"}', "metadata.json": b"{}"})),
    "keras h5": ("m.h5", b"\x89HDF\r\n\x1a\n" + b"\0" * 60),
    "numpy objects": ("m.npy", npy("'|O'", pickle.dumps(Gadget()))),
    "numpy record of objects": ("m.npy", npy("[('a', '<f8'), ('b', '|O')]")),
    "numpy objects in one of several": ("m.npz", zipped({"a.npy": npy("'<f4'"), "b.npy": npy("'|O'")})),
    "skops, a strange type": ("m.skops", zipped({"schema.json": b'[{"__module__": "os", "__class__": "system"}]'})),
    "skops, a strange function": (
        "m.skops", zipped({"schema.json": b'{"a": {"module_path": "builtins", "function": "eval"}}'}),
    ),
    "skops with a passenger": ("m.skops", zipped({"schema.json": b"{}", "x.pkl": b""})),
    "program": ("modeling.py", b"import os"),
    "program by its first line": ("run", b"#!/bin/sh\n"),
    "program, compiled": ("lib.so", b"\x7fELF"),
    "json that asks for code": ("config.json", b'{"auto_map": {"AutoModel": "modeling.Net"}}'),
    "yaml that makes objects": ("conda.yaml", b"a: !!python/object/apply:os.system [ls]\n"),
    "other": ("m.bin", bytes(range(256)) * 4),
    "other, compressed": ("m.gz", gzip.compress(b"x")),
    "archive": ("m.zip", zipped({"a.txt": b"a"})),
    "other, a graph of programs": ("saved_model.pb", b"\x08\x01\x12\x03abc\xff"),
}  # fmt: skip


@pytest.mark.parametrize("case", SAFE)
def test_formats_that_hold_data_only(tmp_path: Path, case: str) -> None:
    name, data = SAFE[case]
    (tmp_path / name).write_bytes(data)
    assert inspect_model(tmp_path) == InspectedModel(case.split(maxsplit=1)[0].strip(","), False)
    assert inspect_model(tmp_path / name).code_bearing is False


@pytest.mark.parametrize("case", CODE)
def test_formats_that_can_run_code(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, data = CODE[case]
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / name).write_bytes(data)
    seen = inspect_model(tmp_path / "m")
    assert seen.code_bearing
    assert any(name in reason for reason in seen.reasons)
    assert seen.format in model_formats.CODE_FORMATS or seen.format in case or case.startswith(("json", "yaml"))
    assert not (tmp_path / CANARY).exists(), "it ran"


def test_the_weights_name_the_format_and_one_program_is_enough(tmp_path: Path) -> None:
    for name, data in {"m.safetensors": WEIGHTS, "config.json": b"{}", "README.md": b"hi", "sub/net.py": b""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert inspect_model(tmp_path) == InspectedModel("safetensors", True, ("'sub/net.py' is a program",))


def test_many_reasons_are_counted_and_links_and_pipes_are_left_alone(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i}.py").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to(tmp_path)
    seen = inspect_model(tmp_path)
    assert (len(seen.reasons), seen.reasons[-1]) == (21, "and 10 more")
    assert inspect_model(tmp_path / "nothing") == InspectedModel("other", False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw[:-1], "fill the file"),
        (lambda raw: raw + b"PK\5\6", "fill the file"),
        (lambda raw: raw[:5], "longer"),
        (lambda raw: struct.pack("<Q", 2**63) + raw[8:], "longer"),
        (lambda raw: struct.pack("<Q", 10) + raw[8:], "not that of safetensors"),
        (lambda raw: raw.replace(b"[16, 22]", b"[15, 22]"), "does not lie"),
        (lambda raw: raw.replace(b"[16, 22]", b"[16, 14]"), "does not lie"),
        (lambda raw: raw.replace(b'"shape": [3]', b'"shape": [9]'), "does not lie"),
        (lambda raw: raw.replace(b'"shape": [3]', b'"shape": -99'), "not that of safetensors"),
        (lambda raw: b"version https://git-lfs.github.com/spec/v1\n", "longer"),
    ],
)
def test_broken_safetensors_are_refused_by_name(tmp_path: Path, change: Any, said: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(change(WEIGHTS))
    with pytest.raises(Invalid, match=rf"'m\.safetensors': .*{said}"):
        inspect_model(tmp_path)


@pytest.mark.parametrize(
    "location",
    [
        "../w.bin",
        "/etc/passwd",
        "a/../../w",
        "C:\\w",
        "..\\w",
        "link",
        "into/w",
        "missing",
        "x" * 5000,
        "a\0b",
        "./w",
        "file:w",
    ],
)
@pytest.mark.parametrize("name", ["m.onnx", "m.weights"])
def test_onnx_external_data_stays_inside(tmp_path: Path, location: str, name: str) -> None:
    model = tmp_path / "m"
    (model / "sub").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(b"secret")
    (model / "link").symlink_to("/etc/passwd")
    (model / "into").symlink_to(tmp_path)
    (tmp_path / "w").write_bytes(b"secret")
    (model / name).write_bytes(onnx_file(tensor(), tensor(location)))
    with pytest.raises(Invalid, match="external data") as told:
        inspect_model(model)
    assert name in told.value.message


def test_onnx_external_data_beside_it_is_weights_and_not_a_riddle(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(bytes(range(256)))
    (tmp_path / "m.onnx").write_bytes(onnx_file(tensor("data/w.bin")))
    assert inspect_model(tmp_path) == InspectedModel("onnx", False)
    (tmp_path / "stray.bin").write_bytes(bytes(range(256)))
    assert inspect_model(tmp_path).reasons == ("'stray.bin' is of no format known here",)
    (tmp_path / "stray.bin").unlink()
    (tmp_path / "data" / "w.bin").write_bytes(pickle.dumps(Gadget()))
    assert inspect_model(tmp_path).code_bearing, "a pickle stays one, whoever points at it"


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ({}, True),
        ({"offset": "64", "length": "192"}, True),
        ({"offset": "256", "length": "0"}, True),
        ({"offset": "257"}, False),
        ({"length": "257"}, False),
        ({"offset": "64", "length": "193"}, False),
        ({"offset": "-1"}, False),
        ({"offset": "300", "length": "-100"}, False),
        ({"offset": "0x10"}, False),
        ({"length": "9" * 5000}, False),
        ({"length": ""}, False),
    ],
)
def test_onnx_external_data_lies_inside_its_file(tmp_path: Path, said: dict[str, str], fits: bool) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(range(256)))
    (tmp_path / "m.onnx").write_bytes(onnx_file(tensor("w.bin", **said), tensor("w.bin")))
    if fits:
        assert inspect_model(tmp_path) == InspectedModel("onnx", False)
        return
    with pytest.raises(Invalid, match=r"'m\.onnx': its external data 'w\.bin' has 256 bytes"):
        inspect_model(tmp_path)


def test_an_onnx_tensor_says_once_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(range(256)))
    twice = proto((1, 4), *((13, proto((1, b"location"), (2, b"w.bin"))) for _ in range(2)))
    (tmp_path / "m.onnx").write_bytes(onnx_file(twice))
    with pytest.raises(Invalid, match="twice where its external data"):
        inspect_model(tmp_path)


@pytest.mark.parametrize("where", ["attribute", "subgraph", "function", "sparse", "training"])
def test_external_data_is_found_wherever_a_tensor_can_be(tmp_path: Path, where: str) -> None:
    far = tensor("../far")
    node = proto((5, proto((1, b"value"), (5, far))))
    files = {
        "attribute": onnx_file(nodes=(node,)),
        "subgraph": onnx_file(nodes=(proto((5, proto((6, proto((1, node)))))),)),
        "function": proto((1, 9), (7, b""), (25, proto((7, node)))),
        "sparse": proto((1, 9), (7, proto((15, proto((1, far)))))),
        "training": proto((1, 9), (7, b""), (20, proto((2, proto((5, far)))))),
    }
    (tmp_path / "m.onnx").write_bytes(files[where])
    with pytest.raises(Invalid, match="outside"):
        inspect_model(tmp_path)


def test_deep_and_endless_onnx_is_refused_soon(tmp_path: Path) -> None:
    deep = b""
    for _ in range(200):
        deep = proto((1, proto((5, proto((6, deep))))))
    (tmp_path / "m.onnx").write_bytes(proto((1, 9), (7, deep)))
    with pytest.raises(Invalid, match="too deep"):
        inspect_model(tmp_path)
    (tmp_path / "m.onnx").write_bytes(proto((7, b"")) + b"\x08\x01" * (onnx_external_data.MAX_PARTS + 1))
    with pytest.raises(Invalid, match="too many"):
        inspect_model(tmp_path)


def hostile_archives() -> dict[str, bytes]:
    bomb = zipped({"a.npy": npy("'<f4'") + b"\0" * 3_000_000})
    claims = bytearray(bomb)
    at = claims.rfind(b"PK\x01\x02")
    claims[at + 24 : at + 28] = struct.pack("<I", 0xFFFFFFFE)
    shared = bytearray(zipped({"a.npy": b"\0" * 1000, "b.npy": b"\0" * 1000}, zipfile.ZIP_STORED))
    end = shared.rfind(b"PK\x05\x06")
    shared[end + 12 : end + 16] = struct.pack("<I", 1 << 30)
    return {
        "up": zipped({"../../evil.py": b""}),
        "root": zipped({"/etc/cron.d/x": b""}),
        "drive": zipped({"C:/x": b""}),
        "back": zipped({"a\\..\\b": b""}),
        "twice": zipped({"a.npy": b"", "b.npy": b""}).replace(b"b.npy", b"a.npy"),
        "bomb": bytes(claims),
        "cut": bomb[: len(bomb) // 2],
        "list too long": bytes(shared),
        "encrypted": _encrypted(),
        "no list": b"PK\x03\x04" + b"\0" * 100,
    }


def _encrypted() -> bytes:
    made = bytearray(zipped({"a.npy": npy("'<f4'")}))
    at = made.rfind(b"PK\x01\x02")
    made[at + 8] |= 1
    made[6] |= 1
    return bytes(made)


@pytest.mark.parametrize("case", sorted(hostile_archives()))
def test_hostile_archives_are_refused_and_nothing_is_written(tmp_path: Path, case: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "m.npz").write_bytes(hostile_archives()[case])
    with pytest.raises(Invalid, match=r"'m\.npz': "):
        inspect_model(tmp_path / "m")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["m", "m.npz"]


def test_an_archive_in_an_archive_is_not_entered(tmp_path: Path) -> None:
    inner = zipped({"schema.json": b"{}"})
    for _ in range(5):
        inner = zipped({"m.zip": inner})
    (tmp_path / "m.zip").write_bytes(inner)
    assert inspect_model(tmp_path).format == "archive"
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../x"))
    (tmp_path / "m.zip").write_bytes(made.getvalue())
    assert inspect_model(tmp_path).format == "other"
    (tmp_path / "m.zip").rename(tmp_path / "m.tar.gz")
    (tmp_path / "m.tar.gz").write_bytes(gzip.compress(made.getvalue()))
    seen = inspect_model(tmp_path)
    assert (seen.format, seen.code_bearing, seen.reasons) == ("other", True, ("'m.tar.gz' is of no format known here",))


def test_too_many_files_and_entries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="too many"):
        archives.require_safe_entry_names(str(i) for i in range(archives.MAX_ENTRIES + 1))
    monkeypatch.setattr(model_formats, "MAX_FILES", 3)
    for i in range(4):
        (tmp_path / f"{i}.txt").touch()
    with pytest.raises(Invalid, match="more than 3 files"):
        inspect_model(tmp_path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=300),
        st.tuples(
            st.sampled_from([data for _, data in (*SAFE.values(), *CODE.values())]),
            st.integers(0, 2000),
            st.binary(max_size=8),
        ).map(
            lambda one: (
                one[0][: one[1] % (len(one[0]) + 1)] + one[2] + one[0][one[1] % (len(one[0]) + 1) + len(one[2]) :]
            )
        ),
    ),
    name=st.sampled_from(["m.safetensors", "m.onnx", "m.npz", "m.json", "m", "m.npy"]),
)
def test_whatever_the_bytes_it_answers_or_refuses(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with contextlib.suppress(Invalid):
        inspect_model(path)
    path.unlink()


def test_it_stays_quick_on_large_nonsense(tmp_path: Path) -> None:
    chance = random.Random(7)
    for name in ("m.bin", "m.onnx", "m.npz", "m.json"):
        (tmp_path / name).write_bytes(
            b"PK\x03\x04" * (name == "m.npz") + b"[" * (8 << 20) * (name == "m.json") + chance.randbytes(8 << 20)
        )
        before = time.process_time()
        with contextlib.suppress(Invalid):
            inspect_model(tmp_path / name)
        assert time.process_time() - before < 2.0, name


def test_looking_loads_no_machinery_of_code() -> None:
    """Neither pickle nor a framework is needed to look at one."""
    assert "falaj.content.model_formats" in sys.modules
    for module in (model_formats, archives, onnx_external_data):
        assert not {"pickle", "torch", "numpy", "marshal"} & set(vars(module))
