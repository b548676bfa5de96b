"""Requests that came in one piece: each is told what it would be told alone, and those alike cost one run."""

import asyncio
import base64
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.model_manifest import TensorSpec
from falaj.infer.cost_curve import CostCurve
from falaj.infer.engine import InferenceEngine
from falaj.infer.records import Arrays, RequestLogConfig, ServerConfig
from falaj.infer.rest_handler import RestInferHandler
from falaj.infer.row_counting import _name_rows
from falaj.infer.token_keys import TokenKeys
from falaj.oip.handler_calls import NO_HEADERS, HttpCall, HttpReply
from falaj.oip.upstream_frames import RequestTemplate
from falaj.oip.upstream_server import UpstreamServer
from tests.infer.running import POISON, Doubler, engine_of, on_loop, until
from tests.oip.test_hop import KEY, asked, pair

PATH = b"/v2/models/m/infer"
REQUEST = st.fixed_dictionaries(
    {
        "rows": st.sampled_from([1, 1, 1, 2, 0]),
        "width": st.sampled_from([2, 2, 2, 3]),
        "value": st.sampled_from([1.0, 2.5, 3.0, 4.0, POISON, float("inf")]),
        "how": st.sampled_from(["json", "binary", "binary", "named", "raw", "broken", "mixed"]),
        "id": st.sampled_from(["", "", "", "seven"]),
        "parameters": st.sampled_from([{}, {}, {}, {"priority": 1}, {"mine": 2}]),
        "path": st.sampled_from(
            [PATH] * 8 + [b"/v2/models/m", b"/v2/models/none/infer", b"/v2/models/m/versions/1/infer"]
        ),
    }
)


def call_of(one: dict[str, Any], name: bytes = b"") -> HttpCall:
    """A request as a gateway passes it on."""
    x = np.full((one["rows"], one["width"]), one["value"], np.float32)
    how, body, headers = one["how"], {}, NO_HEADERS
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    if one["id"]:
        body["id"] = one["id"]
    if one["parameters"]:
        body["parameters"] = dict(one["parameters"])
    if how == "json" and np.isfinite(x).all():
        body["inputs"] = [{**tensor, "data": x.tolist()}]
        return HttpCall(b"POST", one["path"], headers, json.dumps(body).encode(), trusted=True, name=name)
    if how == "broken":
        return HttpCall(b"POST", one["path"], headers, b"{", trusted=True, name=name)
    if how == "raw":
        zero = {b"inference-header-content-length": b"0"}
        return HttpCall(b"POST", one["path"], zero, x.tobytes(), trusted=True, name=name)
    if how == "named":
        body["outputs"] = [{"name": "y", "parameters": {"binary_data": True}}]
    elif how == "binary":
        body.setdefault("parameters", {})["binary_data_output"] = True
    body["inputs"] = [{**tensor, "parameters": {"binary_data_size": x.nbytes}}]
    head = json.dumps(body).encode()
    headers = {b"inference-header-content-length": b"%d" % len(head)}
    return HttpCall(b"POST", one["path"], headers, head + x.tobytes(), trusted=True, name=name)


def plain(value: float, how: str = "binary", **more: Any) -> dict[str, Any]:
    """One row of it."""
    return {"rows": 1, "width": 2, "value": value, "how": how, "id": "", "parameters": {}, "path": PATH, **more}


def door_of(engine: InferenceEngine) -> RestInferHandler:
    return RestInferHandler(engine, TokenKeys((), open_to_all=False))


def told(reply: HttpReply) -> tuple[Any, ...]:
    return reply.status, b"".join(reply.parts), reply.kind, reply.json_bytes, tuple(reply.headers)


async def alone(door: RestInferHandler, calls: list[HttpCall]) -> list[tuple[Any, ...]]:
    """What each is told by itself, one after the other."""
    got: list[tuple[Any, ...]] = []
    for number, call in enumerate(calls):
        door.rest(call, lambda reply: got.append(told(reply)))
        await until(lambda number=number: len(got) > number)
    return got


async def as_one(door: RestInferHandler, calls: list[HttpCall]) -> list[tuple[Any, ...]]:
    """What they are told together."""
    got: dict[int, tuple[Any, ...]] = {}

    def tell(number: int, reply: HttpReply) -> None:
        assert number not in got
        got[number] = told(reply)

    door.many(list(enumerate(calls)), tell)
    await until(lambda: len(got) == len(calls))
    return [got[number] for number in range(len(calls))]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests=st.lists(REQUEST, max_size=12), twice=st.booleans())
def test_each_is_told_what_it_would_be_told_alone(requests: list[dict[str, Any]], twice: bool) -> None:
    async def main() -> None:
        engine = await engine_of(Doubler())
        door, calls = door_of(engine), [call_of(one) for one in requests]
        if twice:  # then their heads and routes are known
            await as_one(door, calls)
        together = await as_one(door, calls)
        assert together == await alone(door, calls)
        await engine.close()

    asyncio.run(main())


@on_loop
async def test_those_alike_are_one_run_and_counted_each() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime)
    door, nums = door_of(engine), list[int]()
    engine.sessions()[0].batcher.note = lambda *told: nums.extend(one.ask.num for one in told[2])
    for how in ("binary", "json", "named"):
        calls = [call_of(plain(float(value), how)) for value in range(10)]
        await as_one(door, calls)  # what is known of heads and paths is known by then
        del runtime.ran[:], nums[:]
        before = engine.statistics("m")["model_stats"][0]
        await as_one(door, calls)
        after = engine.statistics("m")["model_stats"][0]
        assert runtime.ran == [10]
        assert nums == [10]
        assert after["inference_count"] - before["inference_count"] == 10
        num = [one["inference_stats"]["success"]["count"] for one in (before, after)]
        assert num[1] - num[0] == 10
    await engine.close()


@on_loop
async def test_no_run_is_larger_than_pays() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime)
    door, session = door_of(engine), engine.sessions()[0]
    calls = [call_of(plain(float(value))) for value in range(10)]
    await as_one(door, calls)
    del runtime.ran[:]
    session.curve.cap = session.curve.most = 4
    await as_one(door, calls)
    assert runtime.ran == [4, 4, 2]
    await engine.close()


@on_loop
async def test_many_small_ones_are_no_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        CostCurve, "expected_s", lambda *_: 1.0
    )  # what is that dear runs in a thread, were it one request
    runtime = Doubler()
    engine = await engine_of(runtime)
    door, session = door_of(engine), engine.sessions()[0]
    await as_one(door, [call_of(plain(1.0))] * 2)
    session.curve.cap = 1024
    del runtime.ran[:]
    await as_one(door, [call_of(plain(1.0))] * 300)
    assert runtime.ran == [300]
    assert session.batcher.inline
    await engine.close()


@on_loop
async def test_nobody_pays_for_a_neighbour() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime)
    door = door_of(engine)
    calls = [call_of(plain(value)) for value in (1.0, 2.0, POISON, 3.0)]
    await as_one(door, calls)
    failed = engine.statistics("m")["model_stats"][0]["inference_stats"]["fail"]["count"]
    assert [one[0] for one in await as_one(door, calls)] == [200, 200, 422, 200]
    assert engine.statistics("m")["model_stats"][0]["inference_stats"]["fail"]["count"] == failed + 1
    await engine.close()


@on_loop
async def test_a_full_line_takes_as_many_as_there_is_room_for() -> None:
    engine = await engine_of(Doubler(), queue=4)
    door = door_of(engine)
    await as_one(door, [call_of(plain(1.0))])
    assert sorted(one[0] for one in await as_one(door, [call_of(plain(1.0))] * 7)) == [200] * 4 + [429] * 3
    await engine.close()


@on_loop
async def test_rows_are_watched_by_the_names_of_their_requests() -> None:
    engine = await engine_of(Doubler())
    door, seen = door_of(engine), list[list[Any]]()
    engine.sessions()[0].batcher.note = lambda inputs, _, members: seen.append(
        list(_name_rows(members, len(inputs[0])))
    )
    calls = [call_of(plain(1.0, rows=rows), b"n%d" % at) for at, rows in enumerate((1, 1, 2, 2))]
    await as_one(door, calls)
    del seen[:]
    await as_one(door, calls)
    assert sorted(name for run in seen for name in run) == [b"n0", b"n1", b"n2", b"n2", b"n3", b"n3"]
    await engine.close()


class Gives(Doubler):
    """Another shape than it was given."""

    outputs = (TensorSpec("y", "FP32", (-1, -1)),)

    def run(self, inputs: Arrays, parameters: Any) -> Arrays:
        return [super().run(inputs, parameters)[0][:1]]


@on_loop
async def test_a_model_with_other_rows_than_it_was_given_is_asked_one_by_one() -> None:
    engine = await engine_of(Gives())
    door = door_of(engine)
    calls = [call_of(plain(float(value))) for value in range(3)]
    first = await as_one(door, calls)
    assert first == await as_one(door, calls) == await alone(door, calls)
    assert [np.frombuffer(one[1][one[3] :], np.float32)[0] for one in first] == [1.0, 3.0, 5.0]
    await engine.close()


def written(folder: str) -> list[dict[str, Any]]:
    (path,) = Path(folder).iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


@on_loop
async def test_a_journal_has_each_of_them_by_itself() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runtime = Doubler()
        engine = await engine_of(runtime, config=ServerConfig(journal=RequestLogConfig(folder=folder, sample=1.0)))
        door = door_of(engine)
        calls = [call_of(plain(float(at), how, id=f"{how} {at}")) for how in ("json", "binary") for at in range(3)]
        await as_one(door, calls)
        del runtime.ran[:]
        await as_one(door, calls)
        assert runtime.ran == [6]
        await as_one(door, [call_of(plain(POISON, id="bad")), call_of(plain(0.0, id="good"))])
        await engine.close()
        lines = written(folder)[len(calls) :]
    kept = {one["id"]: one for one in lines}
    assert len(kept) == len(lines) == len(calls) + 2
    assert {one["id"] for one in lines if one["status"] != 200} == {"bad"}
    for how in ("json", "binary"):
        for at in range(3):
            (x,), (y,) = (kept[f"{how} {at}"][side] for side in ("inputs", "outputs"))
            assert (x["shape"], y["shape"]) == ([1, 2], [1, 2])
            assert np.frombuffer(base64.b64decode(x["raw"]), np.float32).tolist() == [at, at]
            assert np.frombuffer(base64.b64decode(y["raw"]), np.float32).tolist() == [2 * at + 1] * 2


@on_loop
async def test_answers_of_one_piece_come_over_the_hop() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime)
    server, client, _ = await pair(door_of(engine))  # type: ignore[arg-type]
    assert isinstance(server, UpstreamServer)
    assert server.key == KEY.encode()
    call = call_of(plain(3.0))
    for _ in range(2):
        del runtime.ran[:]
        got: list[Any] = []
        for _ in range(20):
            client.ask_rest(call, 0.0, got.append)
        await until(lambda got=got: len(got) == 20)
        assert {told(one) for one in got} == {told(got[0])}
    assert got[0].status == 200
    assert np.frombuffer(b"".join(got[0].parts)[got[0].json_bytes :], np.float32).tolist() == [7.0, 7.0]
    assert len(runtime.ran) < 20
    assert (await asked(client, b"")).status == 405
    await server.drain(5)
    await engine.close()


@pytest.mark.parametrize("path", [PATH, b"/v2/models/none/infer", b"/v2/nothing"])
@pytest.mark.parametrize("more", [{}, {b"inference-header-content-length": b"x"}, {b"traceparent": b"00"}])
def test_calls_with_one_head_are_told_over_the_hop_what_each_is_told_alone(
    path: bytes, more: dict[bytes, bytes]
) -> None:
    async def main() -> None:
        runtime = Doubler()
        engine = await engine_of(runtime)
        door = door_of(engine)
        values = [1.0, POISON, *range(2, 20)]
        calls = [call_of(plain(float(value), "json", path=path), b"%04d" % at) for at, value in enumerate(values)]
        for call in calls:
            call.headers = more
        wanted = await alone(door, calls)
        server, client, _ = await pair(door)  # type: ignore[arg-type]
        stub, got = RequestTemplate(b"POST", path, more, 4), dict[int, Any]()
        for at, call in enumerate(calls):
            client.pass_rest(stub, call, 0.0, partial(got.setdefault, at))
        await until(lambda: len(got) == len(calls))
        assert [told(got[at]) for at in range(len(calls))] == wanted
        await server.drain(5)
        await engine.close()

    asyncio.run(asyncio.wait_for(main(), 20))
