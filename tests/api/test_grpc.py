"""The gRPC door, by a real channel: values of every type, callers, limits, refusals, streams, TLS."""

import json
import math
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from falaj.api import tls
from falaj.api.grpc_messages import MESSAGE_CLASSES
from falaj.api.grpc_server import FeatureGrpcServer, build_proto_text, create_grpc_server
from falaj.asof.records import NOT_FOUND, NULL, PRESENT
from falaj.core.context import CallContext
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.core.settings import RequestLimits
from tests.api.conftest import FREE
from tests.api.small import AMAL_TOKEN, SmallHouse, every_error
from tests.town import Town

READ, STREAM = "/falaj.v1.Features/Read", "/falaj.v1.Features/ReadStream"
AMAL = (("authorization", f"Bearer {AMAL_TOKEN}"),)
STATUS = "PRESENT"


@dataclass(frozen=True, slots=True)
class Found:
    """What the desk gives."""

    service: Ref
    columns: dict[str, list[object]]
    statuses: dict[str, list[str]]
    at: float
    types: dict[str, str] | None = None


class Desk:
    """Says back the keys as features, or raises what it is asked to."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.heard: list[dict[str, Any]] = []
        self.types: dict[str, str] | None = None

    @operation(reads=("service", "model"), group="read")
    def read(
        self,
        ctx: CallContext,
        service: Ref,
        keys: dict[str, list[Any]],
        request: dict[str, list[Any]] | None = None,
        model: Ref | None = None,
    ) -> Found:
        """Read."""
        self.heard.append({"keys": keys, "request": request, "model": model, "purpose": ctx.purpose})
        for cls in every_error():
            if cls.code == service.name:
                raise cls(f"it is {cls.code} ✗", "do something", "dataset:a/b")
        if service.name == "broken":
            raise ZeroDivisionError("secret in /etc/falaj/keys")
        if service.name == "slow":
            self.release.wait(20)
        columns = {**keys, **(request or {})}
        statuses = {name: ["NULL" if one is None else STATUS for one in values] for name, values in columns.items()}
        return Found(service, columns, statuses, 1.5, self.types)


class Held(SmallHouse):
    """A small house with a desk of features."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"limits": FREE, **settings})
        self.features = Desk()
        self.desks["features"] = self.features


@pytest.fixture
def house() -> Held:
    return Held()


@pytest.fixture
def door(house: Held) -> Iterator[FeatureGrpcServer]:
    with create_grpc_server(house, "127.0.0.1:0") as running:
        yield running


@pytest.fixture
def channel(door: FeatureGrpcServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(door.address) as made:
        yield made


def ask(name: str = "x", **keys: dict[str, Any]) -> Any:
    columns = {key: MESSAGE_CLASSES["Column"](**value) for key, value in keys.items()}
    return MESSAGE_CLASSES["ReadRequest"](service=f"service:fraud/{name}", keys=columns)


def read(channel: grpc.Channel, message: Any, metadata: Any = AMAL, method: str = READ, **options: Any) -> Any:
    call = channel.unary_unary(
        method,
        lambda one: one if isinstance(one, bytes) else one.SerializeToString(),
        MESSAGE_CLASSES["ReadResponse"].FromString,
    )
    return call(message, metadata=metadata, timeout=20, **options)


def refused(channel: grpc.Channel, message: Any = b"", **options: Any) -> tuple[grpc.StatusCode, dict[str, Any]]:
    with pytest.raises(grpc.RpcError) as caught:
        read(channel, message, **options)
    return caught.value.code(), dict(caught.value.trailing_metadata())


def test_values_of_every_type_come_back_as_they_went(house: Held, channel: grpc.Channel) -> None:
    message = ask(
        bools={"bools": [True, False]},
        ints={"ints": [2**63 - 1, -(2**63)]},
        doubles={"doubles": [-0.0, math.inf]},
        strings={"strings": ["", "ش🙂"]},
        blobs={"blobs": [b"\x00", b""]},
        gap={"ints": [7, 0], "nulls": [1]},
        none={"nulls": [0, 1]},
        lists={"lists": [MESSAGE_CLASSES["Column"](ints=[1, 2]), MESSAGE_CLASSES["Column"]()]},
    )
    message.request["amount"].doubles.extend([1.5, math.nan])
    message.model = "model:fraud/scorer@v2"
    response = read(channel, message, metadata=(*AMAL, ("falaj-purpose", "fraud")))
    (heard,) = house.features.heard
    assert heard["keys"] | {"doubles": None} == {
        "bools": [True, False], "ints": [2**63 - 1, -(2**63)], "doubles": None, "strings": ["", "ش🙂"],
        "blobs": [b"\x00", b""], "gap": [7, None], "none": [None, None], "lists": [[1, 2], []],
    }  # fmt: skip
    assert math.copysign(1, heard["keys"]["doubles"][0]) == -1
    assert heard["request"]["amount"][0] == 1.5
    assert heard["model"] == Ref.parse("model:fraud/scorer@v2")
    assert heard["purpose"] == "fraud"
    assert (response.service, response.at_us) == ("service:fraud/x", 1_500_000)
    got = dict(zip(response.names, response.columns, strict=True))
    for name, column in {**message.keys, **message.request}.items():
        back = json_format.MessageToDict(got[name])
        statuses = back.pop("statuses")
        assert back == json_format.MessageToDict(column), name
        assert [row for row, status in enumerate(statuses) if status == "NULL"] == list(column.nulls)


def test_declared_types_decide_where_values_do_not(house: Held, channel: grpc.Channel) -> None:
    house.features.types = {"a": "float64", "b": "bytes", "c": "int64", "d": "list[float32]"}
    message = ask(
        a={"strings": ["nan", "-inf"]}, b={"strings": ["00ff", ""]}, c={"nulls": [0, 1]},
        d={"lists": [MESSAGE_CLASSES["Column"](strings=["nan"]), MESSAGE_CLASSES["Column"]()]},
    )  # fmt: skip
    response = read(channel, message)
    a, b, c, d = (response.columns[list(response.names).index(name)] for name in "abcd")
    assert (math.isnan(a.doubles[0]), a.doubles[1]) == (True, -math.inf)
    assert list(b.blobs) == [b"\x00\xff", b""]
    assert (list(c.ints), list(c.nulls)) == ([0, 0], [0, 1])
    assert math.isnan(d.lists[0].doubles[0])


def test_nobody_is_heard_without_a_token(house: Held, channel: grpc.Channel) -> None:
    for metadata in (None, (("authorization", "Bearer wrong"),), (("authorization", "Basic YQ=="),)):
        for method in (READ, "/falaj.v1.Features/Other", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"):
            code, said = refused(channel, b"\xff\xff no message at all", metadata=metadata, method=method)
            assert (code, said["falaj-code"]) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
            assert said["falaj-hint-bin"]
    assert house.features.heard == []
    assert len(house.denials) == 9  # every one left an event
    twice = refused(channel, ask(), metadata=AMAL + AMAL)
    assert twice[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_other_methods_do_not_exist(channel: grpc.Channel) -> None:
    code, said = refused(channel, ask(), method="/falaj.v1.Features/Write")
    assert (code, said["falaj-code"]) == (grpc.StatusCode.NOT_FOUND, "not-found")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff\xff\xff", "no ReadRequest"),
        (ask(a={"ints": [1], "strings": ["x"]}), "more than one type"),
        (ask(a={"ints": [1], "nulls": [1]}), "nulls"),
        (ask(a={"nulls": [4_000_000_000]}), "nulls"),
        (
            ask(a={"lists": [MESSAGE_CLASSES["Column"](lists=[MESSAGE_CLASSES["Column"](ints=[1])])]}),
            "more than one type",
        ),
        (MESSAGE_CLASSES["ReadRequest"](service="nothing at all"), "reference"),
    ],
)
def test_a_request_that_means_nothing_is_invalid(channel: grpc.Channel, body: Any, why: str) -> None:
    code, said = refused(channel, body)
    assert (code, said["falaj-code"]) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid")
    assert why in said["falaj-message-bin"].decode()


def test_deep_nesting_is_refused(channel: grpc.Channel) -> None:
    deep = MESSAGE_CLASSES["Column"](ints=[1])
    for _ in range(90):
        deep = MESSAGE_CLASSES["Column"](lists=[deep])
    raw = deep.SerializeToString()
    for _ in range(2000):  # deeper than any parser of ours would build
        head = len(raw)
        size = bytearray()
        while head > 127:
            size.append(head & 127 | 128)
            head >>= 7
        raw = b"\x32" + bytes([*size, head]) + raw
    for column in (deep.SerializeToString(), raw):
        entry = MESSAGE_CLASSES["ReadRequest"](service="service:fraud/x").SerializeToString()
        inner = b"\x0a\x01a\x12" + _varint(len(column)) + column
        code, _ = refused(channel, entry + b"\x12" + _varint(len(inner)) + inner)
        assert code == grpc.StatusCode.INVALID_ARGUMENT


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def test_every_error_keeps_its_code_message_and_hint(channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    seen = set()
    for cls in every_error():
        if cls is FalajError:
            continue
        code, said = refused(channel, ask(cls.code))
        assert said["falaj-code"] == cls.code
        assert said["falaj-message-bin"].decode() == f"it is {cls.code} ✗"
        assert said["falaj-hint-bin"] == b"do something"
        assert said["falaj-ref-bin"] == b"dataset:a/b"
        assert (code == grpc.StatusCode.INTERNAL) == (cls.code == "silent-change")
        seen.add(code)
    assert len(seen) == 10
    code, said = refused(channel, ask("broken"))
    assert code == grpc.StatusCode.INTERNAL
    assert said["falaj-message-bin"] == b"something broke on our side"
    assert said["falaj-request"] in said["falaj-hint-bin"].decode()
    assert "secret" not in json.dumps({name: str(value) for name, value in said.items()})
    assert any("ZeroDivisionError" in str(record.exc_info) for record in caplog.records)


def test_limits_hold(tmp_path: Path) -> None:
    del tmp_path
    house = Held(
        limits=RequestLimits(body_bytes=10_000, timeout_s=0.3, requests_per_s=0.001, burst=4, denials_per_s=1e6)
    )
    with create_grpc_server(house, "127.0.0.1:0") as door, grpc.insecure_channel(door.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            read(channel, ask(a={"strings": ["x" * 20_000]}))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert house.features.heard == []
        code, said = refused(channel, ask("slow", a={"ints": [1]}))
        assert (code, said["falaj-code"]) == (grpc.StatusCode.UNAVAILABLE, "unavailable")
        house.features.release.set()
        for _ in range(3):
            read(channel, ask(a={"ints": [1]}))
        code, said = refused(channel, ask())
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(said["retry-after"]) >= 1


def test_a_callers_own_deadline_ends_the_wait(house: Held, channel: grpc.Channel) -> None:
    call = channel.unary_unary(READ, lambda one: one.SerializeToString(), MESSAGE_CLASSES["ReadResponse"].FromString)
    with pytest.raises(grpc.RpcError) as caught:
        call(ask("slow", a={"ints": [1]}), metadata=AMAL, timeout=0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    house.features.release.set()
    assert read(channel, ask(a={"ints": [3]})).columns[0].ints == [3]


def test_a_stream_is_answered_in_order_until_it_is_refused(house: Held, channel: grpc.Channel) -> None:
    call = channel.stream_stream(
        STREAM, lambda one: one.SerializeToString(), MESSAGE_CLASSES["ReadResponse"].FromString
    )
    answers = call(iter([ask(a={"ints": [n]}) for n in range(50)]), metadata=AMAL, timeout=20)
    assert [answer.columns[0].ints[0] for answer in answers] == list(range(50))
    answers = call(iter([ask(a={"ints": [1]}), ask("denied"), ask(a={"ints": [2]})]), metadata=AMAL, timeout=20)
    assert next(answers).columns[0].ints == [1]
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(grpc.RpcError) as caught:
        next(call(iter([ask()]), timeout=20))
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert len(house.features.heard) == 52


def test_a_token_that_ends_ends_its_stream(house: Held, channel: grpc.Channel) -> None:
    gone = threading.Event()

    def asks() -> Iterator[Any]:
        yield ask(a={"ints": [1]})
        gone.wait(20)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:  # a token that was good stays good for a moment
            yield ask(a={"ints": [2]})
            gone.wait(0.01)

    call = channel.stream_stream(
        STREAM, lambda one: one.SerializeToString(), MESSAGE_CLASSES["ReadResponse"].FromString
    )
    answers = call(asks(), metadata=AMAL, timeout=30)
    next(answers)
    house.tokens.clear()
    gone.set()
    with pytest.raises(grpc.RpcError) as caught:
        list(answers)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_many_callers_at_once(channel: grpc.Channel) -> None:
    call = channel.unary_unary(READ, lambda one: one.SerializeToString(), MESSAGE_CLASSES["ReadResponse"].FromString)
    waiting = [call.future(ask(a={"ints": [n]}), metadata=AMAL, timeout=30) for n in range(300)]
    assert [one.result().columns[0].ints[0] for one in waiting] == list(range(300))


def test_no_plain_door_to_the_outside(house: Held) -> None:
    with pytest.raises(Invalid, match="no TLS"):
        create_grpc_server(house, "0.0.0.0:0")
    with pytest.raises(Invalid, match="no address"):
        create_grpc_server(house, "here")


def test_an_address_that_is_taken_is_said_so(house: Held, door: FeatureGrpcServer) -> None:
    second = create_grpc_server(house, door.address)
    with pytest.raises(Unavailable, match="cannot be listened on"):
        second.start()
    second.stop()


@contextmanager
def apart(home: Path, *, mutual: bool = False) -> Iterator[str]:
    """A door with TLS in a process of its own: in this one somebody may have used grpc before us."""
    code = "import sys, falaj.api.grpc_server; from tests.api.test_grpc import hold; hold(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(home), "mutual" if mutual else ""]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    try:
        yield child.stdout.readline().strip()
    finally:
        child.communicate("")


def hold(home: str, mutual: str) -> None:
    """In that process: open, say where, and wait for the end of input."""
    made = tls.ensure_local_certificate(home, tls.list_local_names("127.0.0.1"), time.time())
    chain = {"tls": tls.TlsSettings(made.cert, made.key, made.ca, mutual=True)} if mutual else {}
    with create_grpc_server(Held(home=home, **chain), "127.0.0.1:0", own_ca=not mutual) as door:
        print(door.address, flush=True)
        sys.stdin.read()


def test_tls_1_3_only_and_mutual_where_asked(tmp_path: Path) -> None:
    made = tls.ensure_local_certificate(str(tmp_path), tls.list_local_names("127.0.0.1"), time.time())
    worker = tls.issue_client_certificate(str(tmp_path), "worker-7", time.time())
    ca, pair = Path(made.ca).read_bytes(), [Path(name).read_bytes() for name in (worker.key, worker.cert)]
    trusting = grpc.ssl_channel_credentials(ca)
    with apart(tmp_path) as address:
        with grpc.secure_channel(address, trusting) as channel:
            assert read(channel, ask(a={"ints": [1]})).columns[0].ints == [1]
        with grpc.insecure_channel(address) as channel:
            assert refused(channel, ask())[0] == grpc.StatusCode.UNAVAILABLE
        assert handshake(address, made.ca)[0] == "TLSv1.3"
        with pytest.raises(OSError, match=r"EOF|alert|reset"):
            handshake(address, made.ca, ssl.TLSVersion.TLSv1_2)
    with apart(tmp_path, mutual=True) as address:
        with grpc.secure_channel(address, trusting) as channel:
            assert refused(channel, ask())[0] == grpc.StatusCode.UNAVAILABLE
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, *pair)) as channel:
            assert read(channel, ask(a={"ints": [1]})).columns[0].ints == [1]
            assert refused(channel, ask(), metadata=())[0] == grpc.StatusCode.UNAUTHENTICATED  # it names nobody


def test_a_renewed_certificate_is_shown(tmp_path: Path) -> None:
    made = tls.ensure_local_certificate(str(tmp_path), tls.list_local_names("127.0.0.1"), time.time())
    with apart(tmp_path) as address:
        _, first = handshake(address, made.ca)
        tls.ensure_local_certificate(
            str(tmp_path), (*tls.list_local_names("127.0.0.1"), "another.example"), time.time()
        )
        os.utime(made.cert, (1, 1))  # another time than before, however quick the test is
        assert handshake(address, made.ca)[1] != first


def test_a_door_that_would_speak_older_tls_stays_shut(tmp_path: Path) -> None:
    used = "import sys, grpc; grpc.ssl_channel_credentials()"
    code = f"{used}; from tests.api.test_grpc import hold; hold(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(tmp_path), ""]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env)
    assert done.returncode == 1
    assert "speaks TLS older than 1.3" in done.stderr


def handshake(address: str, ca: str, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> tuple[str, bytes]:
    """The version that was agreed on, and the certificate."""
    context = ssl.create_default_context(cafile=ca)
    context.maximum_version = newest
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as bare,
        context.wrap_socket(bare, server_hostname=host) as wrapped,
    ):
        return wrapped.version() or "", wrapped.getpeercert(binary_form=True) or b""


def test_the_proto_says_what_the_messages_are() -> None:
    text = build_proto_text()
    for message, cls in MESSAGE_CLASSES.items():
        block = text.partition(f"message {message} {{")[2].partition("}")[0]
        for field in cls.DESCRIPTOR.fields:
            assert f" {field.name} = {field.number};" in block
    assert "rpc ReadStream(stream ReadRequest) returns (stream ReadResponse);" in text
    assert all(ord(letter) < 128 for letter in text)


def test_http_alone_does_not_load_grpc() -> None:
    code = "import sys, falaj.api.http_server; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


DEFINED = """
from falaj.features import Entity, Feature, Service, Source, view
customer = Entity("fraud/customer", keys={"customer_id": "string"})
spend = view("fraud/spend", customer, Source("push", event="at"), ttl="90d", label="AE-PDPL,sensitive,purpose=fraud",
             features=[Feature("amount", "float64"), Feature("city", "string"), Feature("visits", "int64")])
scorer = Service("fraud/scorer", [spend])
"""


def test_the_real_house_reads_through_its_guard(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    (tmp_path / "features.py").write_text(DEFINED)
    amal = town.as_("amal")
    amal.features.apply(str(tmp_path / "features.py"))
    now = time.time_ns() // 1000
    row = {"customer_id": ["ana"], "at": [now], "amount": [12.5], "city": [None], "visits": [2**62]}
    amal.features.push("view:fraud/spend", row)
    message = MESSAGE_CLASSES["ReadRequest"](service="service:fraud/scorer")
    message.keys["customer_id"].strings.extend(["ana", "nobody"])
    with create_grpc_server(town.house, "127.0.0.1:0") as door, grpc.insecure_channel(door.address) as channel:
        as_amal = (("authorization", f"Bearer {town.tokens['amal']}"), ("falaj-purpose", "fraud"))
        answer = read(channel, message, metadata=as_amal)
        got = dict(zip(answer.names, answer.columns, strict=True))
        assert answer.service == "service:fraud/scorer@v1"
        assert got["amount"].doubles[0] == 12.5
        assert got["visits"].ints[0] == 2**62
        assert list(got["visits"].statuses) == [PRESENT, NOT_FOUND]
        assert list(got["city"].statuses) == [NULL, NOT_FOUND]
        for who, purpose in (("sara", "fraud"), ("amal", "marketing")):
            metadata = (("authorization", f"Bearer {town.tokens[who]}"), ("falaj-purpose", purpose))
            code, _ = refused(channel, message, metadata=metadata)
            assert code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND)
    town.close()
