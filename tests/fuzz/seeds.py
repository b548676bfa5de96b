"""Small things that the readers take, written out or made by the writers themselves: where the fuzzers begin."""

import base64
import json
import struct
from functools import cache
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.shape.source import PACKAGE


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


SHEET = _json({
    "runtime": "onnx", "file": "model.onnx", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "most_rows": 4, "batches": True, "steps": [], "parameters": {"a": "b"},
})  # fmt: skip
CONFIG = _json({
    "models": [{"name": "m", "version": "1", "folder": "f", "files": {"a": "0"}, "sheet": json.loads(SHEET)}],
    "keys": ["00"], "journal": {"folder": "j", "sample": 0.5}, "body_bytes": 9, "drain_s": 1.5,
})  # fmt: skip
JOB = _json({"command": ["python", "a.py"], "roles": [{"name": "worker", "count": 2}], "retries": 1, "env": {"A": "b"}})
WEBHOOK = _json({"a": {"b": "c"}, "list": [1, 2], "n": 1.5})
_BLOB = {"mediaType": "application/json", "digest": "sha256:" + "0" * 64, "size": 2, "annotations": {"a": "b"}}
MANIFEST = _json({"schemaVersion": 2, "config": _BLOB, "layers": [_BLOB], "annotations": None})
_INPUT = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2.5], [3, -4e9]]}
_TEXTS = {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["a"]}
INFER = _json({"id": "1", "inputs": [_INPUT, _TEXTS], "outputs": [{"name": "y", "parameters": {"binary_data": False}}]})
_RAW = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
BINARY = _json({"inputs": [_RAW], "parameters": {"binary_data_output": True}})
BINARY_BODY = BINARY + bytes(8)
HTTP1 = (
    b"POST /v2/models/a.b/infer HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}GET /v2 HTTP/1.1\r\nhost: h\r\n\r\n"
)
HTTP1_CHUNKED = b"POST /v2 HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n"
_NPY_HEAD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
NPY = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(_NPY_HEAD)) + _NPY_HEAD + bytes(8)
_POINT = {"key": "loss", "value": 0.5, "timestamp": "1", "step": 2}
BATCH = _json({"run_id": "r", "metrics": [_POINT], "params": [{"key": "a", "value": "b"}], "tags": []})
_INFO = {"trace_id": "tr-1", "trace_location": {"mlflow_experiment": {"experiment_id": "1"}}, "tags": {"a": "b"}}
TRACE = _json({"trace": {"trace_info": _INFO}})
EVENT = _json({
    "actor": "a", "at": 1, "behalf": "", "body": {"n": 1}, "id": "0", "inputs": ["dataset:a/b@v1"], "policy": "",
    "request": "", "rules": [], "sealed": "", "subject": "dataset:a/c@v1", "tenant": "t",
    "verb": "publish", "zone": "z",
})  # fmt: skip


def profile() -> bytes:
    """A profile of two columns."""
    from falaj.drift.profiles import build_profile, encode_profile

    return encode_profile(build_profile({"n": np.arange(50.0), "c": np.array(["a", "b"] * 25)}))


PROFILE = profile()


def packed_tally() -> bytes:
    """Counts of it, as they travel."""
    from falaj.drift.profiles import read_profile
    from falaj.drift.tally import DataTally

    return DataTally(read_profile(PROFILE)).to_bytes()


def tally() -> bytes:
    """The same before it is packed."""
    import zlib

    whole = packed_tally()
    return whole[:4] + zlib.decompress(whole[4:])


def pages() -> tuple[bytes, ...]:
    """A page of entries, and one of pages."""
    entry = struct.pack("<BH", 0, 1) + b"a" + struct.pack("<QBB", 3, 0, 1) + bytes(32)
    link = struct.pack("<BH", 2, 1) + b"l" + struct.pack("<H", 1) + b"t"
    leaf = struct.pack("<3sBBI", b"FPG", 1, 0, 2) + entry + link
    above = struct.pack("<3sBBI", b"FPG", 1, 1, 1) + struct.pack("<H", 1) + b"a" + bytes(32)
    return leaf, above


def recipes() -> tuple[bytes, ...]:
    """The pieces of a file."""
    return (struct.pack("<3sBBI", b"FRC", 1, 0, 1) + struct.pack("<32sQ", bytes(32), 5),)


def points() -> bytes:
    """Measurements."""
    from falaj.track.metric_points import pack_points

    return pack_points([("loss", 1, 2.0, 0.5)])


def heads() -> bytes:
    """The newest of each metric."""
    from falaj.track.metric_points import pack_heads

    return pack_heads({"loss": (0, 1, 2.0, 0.5)})


def columns() -> bytes:
    """One curve."""
    from falaj.track.metric_points import SpotColumns, pack_columns

    return pack_columns(SpotColumns.of([(1, 2.0, 0.5), (2, 3.0, 0.25)]))


def keys() -> bytes:
    """A table of two keys."""
    return b"falaj keys 1\0\0\0\0" + struct.pack("<Q", 0)


def stats() -> bytes:
    """What is known of a column."""
    from falaj.asof.column_stats import ColumnStats, stats_to_plain

    return _json(stats_to_plain(ColumnStats("number")))


def proof() -> bytes:
    """A proof that proves nothing."""
    zero = base64.b64encode(bytes(32)).decode()
    note = f"o\n1\n{zero}\ntime 1\nnumber 0\nprevious -\nkey {zero}\n\n\u2014 o {zero}\n"
    return _json({"event": "{}", "index": 0, "size": 1, "leaf": "00", "hashes": ["00" * 32], "note": note})


def protobuf() -> tuple[bytes, ...]:
    """Requests with numbers as bytes, and as lists."""
    from falaj.oip.grpc_messages import INFER_REQUEST
    from falaj.oip.protobuf import encode_message

    one = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
    raw = {"model_name": "m", "inputs": [one], "raw_input_contents": [bytes(8)], "outputs": [{"name": "y"}]}
    typed = {"model_name": "m", "id": "1", "inputs": [{**one, "contents": {"fp32_contents": [1.0, 2.0]}}]}
    return encode_message(INFER_REQUEST, raw), encode_message(INFER_REQUEST, typed)


def hpack() -> bytes:
    """A block of headers."""
    from hpack import Encoder

    named = [(":method", "POST"), (":path", "/inference.GRPCInferenceService/ModelInfer"), (":scheme", "http")]
    return bytes(Encoder().encode([*named, ("content-type", "application/grpc"), ("te", "trailers"), ("x-a", "b")]))


def safetensors() -> bytes:
    """Two tensors."""
    head = _json({
        "__metadata__": {"a": "b"}, "w": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "b": {"dtype": "I8", "shape": [3], "data_offsets": [8, 11]},
    })  # fmt: skip
    return struct.pack("<Q", len(head)) + head + bytes(11)


def onnx() -> tuple[bytes, ...]:
    """A graph with one tensor, whose bytes lie in the file."""
    from onnx import TensorProto, helper

    node = helper.make_node("Add", ["x", "w"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])])
    return (helper.make_model(graph).SerializeToString(),)


def regimes() -> tuple[str, ...]:
    """The shortest profile that we ship."""
    shipped = sorted(Path(PACKAGE, "govern/profiles").glob("*.toml"), key=lambda path: path.stat().st_size)
    return (shipped[0].read_text(encoding="utf-8"),)


def token() -> str:
    """A token that nobody signed."""
    parts = ({"alg": "EdDSA", "typ": "JWT", "kid": "k"}, {"iss": "i", "aud": ["falaj"], "exp": 2, "iat": 1, "sub": "s"})
    return ".".join([*(base64.urlsafe_b64encode(_json(part)).decode().rstrip("=") for part in parts), "AAAA"])


@cache
def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_key() -> str:
    """Whose signatures are checked."""
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return _key().public_key().public_bytes(serialization.Encoding.PEM, kind).decode()


def bundle() -> str:
    """A true signature over one file, as model signing writes it."""
    from falaj.catalog.model_signing import sign_model

    class Ring:
        def model_signer(self, _tenant: str, _zone: str) -> ec.EllipticCurvePrivateKey:
            return _key()

    return sign_model(Ring(), "t", "z", "m", {"a": "0" * 64})[0]  # type: ignore[arg-type]


def backup() -> bytes:
    """The ledger of a small house."""
    from falaj.store.backup import RowTally, encode_rows

    record = ("t", "thing", "p", "n", "", 1, "cell", b"body", 1.0, '[["a","b"]]')
    events = [
        (1, 0, n, f"id{n}", "t", "z", "add", "ann", "thing", "p", "n", "r1", 1.0, "", bytes(32), b"data", "", n - 1)
        for n in (1, 2)
    ]
    rows = [("records", record), *(("events", event) for event in events), ("leases", ("l", "me", 1, 2.0))]
    return b"".join(encode_rows(iter(rows), RowTally()))


def backup_manifest() -> bytes:
    """What says that there is a backup."""
    import msgspec

    from falaj.store.backup import LogDigest
    from falaj.store.backup_inventory import SkippedObject
    from falaj.store.backup_target import TARGET_FORMAT, BackupManifest

    logs, left = (LogDigest("t", "z", 2, "0" * 64),), (SkippedObject("blob:a/b@v1", "z", "0" * 64, "it must stay"),)
    return msgspec.json.encode(
        BackupManifest(TARGET_FORMAT, "n", 1.0, "z", "z", {"events": 2}, logs, 3, "0", "0", 1, 5, 1, left)
    )


def backup_measures() -> bytes:
    """Two blocks of measurements."""
    import struct

    import msgspec

    from falaj.core.ports import SeriesBlock

    blocks = [SeriesBlock("t", "s", "", f"b{n}", "z", "0", "1", 2, 1.0, b"sealed") for n in range(2)]
    data = msgspec.msgpack.encode(blocks)
    return struct.pack(">I", len(data)) + data


def backup_contents() -> bytes:
    """What belongs to it beside the ledger."""
    from falaj.store.backup_inventory import DestroyedKey, SkippedObject
    from falaj.store.backup_target import BackedUpObject, BackupContents, encode_contents

    tomb = DestroyedKey("t", "subject.z.0", 1.0)
    return encode_contents(
        BackupContents([BackedUpObject("z", "k", 5, bytes(32))], [SkippedObject("", "z", "0", "gone")], [tomb], [tomb])
    )
