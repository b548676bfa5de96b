import ast
import asyncio
import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.model_manifest import ModelManifest
from falaj.infer.engine import InferenceEngine
from falaj.infer.records import ModelConfig, ServerConfig
from falaj.oip.tensors import InferenceRequest, InferenceResponse, InputTensor
from tests.infer.models import cnn, encoder, mlp, mlp_of
from tests.infer.running import Doubler, ask_of, asked, engine_of, on_loop, rows, until


@on_loop
async def test_a_real_model_answers_the_same_alone_and_with_others(tmp_path: Path) -> None:
    engine = InferenceEngine()
    await engine.placed(ModelConfig("m", "1", str(mlp(tmp_path))))
    given = [np.random.default_rng(seed).standard_normal((1 + seed % 3, 32)) for seed in range(50)]
    together = await asyncio.gather(*(asked(engine, ask_of(x)) for x in given))
    for x, answer in zip(given, together, strict=True):
        alone = await asked(engine, ask_of(x))
        np.testing.assert_allclose(answer.outputs[0].data, alone.outputs[0].data, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(alone.outputs[0].data, mlp_of(x.astype(np.float32)), rtol=1e-4, atol=1e-4)
    assert max(_sizes(engine)) > 1
    await engine.close()


def _sizes(engine: InferenceEngine) -> list[int]:
    return [one["batch_size"] for one in engine.statistics("m")["model_stats"][0]["batch_stats"]]


@on_loop
async def test_swaps_under_load_fail_nobody(tmp_path: Path) -> None:
    """Two models take turns a hundred times under one name; every answer is one of theirs, and none is an error."""
    folders = [str(mlp(tmp_path / str(seed), seed=seed)) for seed in (1, 2)]
    engine = InferenceEngine()
    await engine.placed(ModelConfig("m", "1", folders[0]))
    x = np.ones((1, 32), np.float32)
    right = [float(mlp_of(x, seed=seed)[0, 0]) for seed in (1, 2)]
    loop, got, ended = asyncio.get_running_loop(), [0, 0], False
    wrong: list[Any] = []

    def note(answer: InferenceResponse | FalajError) -> None:
        value = float(answer.outputs[0].data[0, 0]) if isinstance(answer, InferenceResponse) else None
        which = [index for index, one in enumerate(right) if value is not None and abs(one - value) < 1e-3]
        if which:
            got[which[0]] += 1
        else:
            wrong.append(answer)
        if not ended:
            loop.call_soon(engine.submit, ask_of(x), note)

    for _ in range(8):
        engine.submit(ask_of(x), note)
    for turn in range(100):
        await engine.placed(ModelConfig("m", "1", folders[(turn + 1) % 2]))
    ended = True
    await until(lambda: not engine.busy)
    assert wrong == []
    assert min(got) > 100
    await engine.close()


@on_loop
async def test_a_load_that_fails_changes_nothing(tmp_path: Path) -> None:
    engine = InferenceEngine()
    await engine.placed(ModelConfig("m", "1", str(mlp(tmp_path / "good"))))
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "model.onnx").write_bytes(b"no model")
    for version in ("1", "2"):
        with pytest.raises(FalajError):
            await engine.placed(ModelConfig("m", version, str(bad)))
    assert engine.names() == (("m", "1"),)
    assert engine.ready()
    assert (await asked(engine, ask_of(np.ones((1, 32))))).version == "1"
    await engine.close()


@on_loop
async def test_versions_side_by_side_and_the_newest_by_default() -> None:
    engine = await engine_of({"9": Doubler(), "10": Doubler(), "2": Doubler()})
    assert (await asked(engine, ask_of(rows([1])))).version == "10"
    assert (await asked(engine, ask_of(rows([1]), version="2"))).version == "2"
    assert engine.metadata("m")["versions"] == ["2", "9", "10"]
    await engine.removed("m", "10")
    assert (await asked(engine, ask_of(rows([1])))).version == "9"
    for ask, said in ((ask_of(rows([1]), version="10"), "no version"), (ask_of(rows([1]), model="q"), "no model")):
        with pytest.raises(NotFound, match=said):
            await asked(engine, ask)
    await engine.close()


@on_loop
async def test_what_is_in_line_is_answered_before_a_model_goes() -> None:
    runtime = Doubler(isolated=True)
    engine = await engine_of(runtime)
    runtime.gate.clear()
    got: list[Any] = []
    for value in range(5):
        engine.submit(ask_of(rows([value])), got.append)
    leaving = asyncio.create_task(engine.removed("m", "1"))
    await asyncio.sleep(0)
    with pytest.raises(NotFound):
        await asked(engine, ask_of(rows([1])))
    assert not runtime.closed
    runtime.gate.set()
    await leaving
    assert len(got) == 5
    assert all(isinstance(one, InferenceResponse) for one in got)
    assert runtime.closed
    await engine.close()


@on_loop
async def test_loads_and_unloads_at_the_same_time_end_in_order(tmp_path: Path) -> None:
    for version in ("1", "2"):
        mlp(tmp_path / "m" / version, seed=int(version))
    engine = InferenceEngine(ServerConfig(repository=str(tmp_path)))
    ends: list[Any] = []
    for turn in range(20):
        if turn % 2:
            engine.unload("m", {}, lambda error, turn=turn: ends.append((turn, error)))
        else:
            engine.load("m", {"version": str(1 + turn % 4 // 2)}, lambda error, turn=turn: ends.append((turn, error)))
    await until(lambda: len(ends) == 20)
    assert engine.names() in ((), (("m", "1"),), (("m", "2"),))
    assert [error for _, error in ends if error is not None and not isinstance(error, NotFound)] == []
    done: list[Any] = []
    engine.load("m", {}, done.append)
    await until(lambda: done)
    assert engine.names() == (("m", "2"),)
    await engine.close()


@on_loop
async def test_models_used_least_recently_make_room_and_come_back(tmp_path: Path) -> None:
    folders = [mlp(tmp_path / str(seed), seed=seed) for seed in range(3)]
    size = sum(one.stat().st_size for one in folders[0].rglob("*") if one.is_file())
    engine = InferenceEngine(ServerConfig(memory_bytes=int(size * 2.5)))
    for index, folder in enumerate(folders):
        await engine.placed(ModelConfig(f"m{index}", "1", str(folder)))
    x = np.ones((2, 32), np.float32)
    for turn in range(9):
        answers = await asyncio.gather(*(asked(engine, ask_of(x, model=f"m{turn % 3}")) for _ in range(5)))
        for one in answers:
            np.testing.assert_allclose(one.outputs[0].data, mlp_of(x, seed=turn % 3), rtol=1e-4, atol=1e-4)
        in_memory = [one for one in engine._model_table.entries() if one.session is not None]
        assert len(in_memory) <= 2
    assert engine.ready("m0")
    assert engine.metadata("m1")["inputs"][0]["name"] == "x"
    assert [one["inference_count"] for one in engine.statistics()["model_stats"]] == [30, 30, 30]
    with pytest.raises(Invalid, match="bytes of memory"):
        await engine.placed(ModelConfig("big", "1", str(encoder(tmp_path / "big", layers=1))))
    await engine.close()


@on_loop
async def test_a_hung_process_is_ended_and_the_others_are_answered_by_the_next() -> None:
    made: list[Doubler] = []

    def load(_: ModelConfig) -> Doubler:
        made.append(Doubler(isolated=True))
        return made[-1]

    engine = InferenceEngine(ServerConfig(), load)
    await engine.placed(ModelConfig("m", "1", "", timeout_s=0.1))
    made[0].entered.clear()
    made[0].gate.clear()
    got: list[Any] = []
    engine.submit(ask_of(rows([1])), got.append)
    await until(made[0].entered.is_set)
    for value in (2, 3):
        engine.submit(ask_of(rows([value])), got.append)
    await until(lambda: len(got) == 3)
    assert isinstance(got[0], Unavailable)
    assert [float(one.outputs[0].data[0, 0]) for one in got[1:]] == [5, 7]
    assert len(made) == 2
    assert made[0].closed
    assert engine.ready("m")
    await engine.close()


@on_loop
async def test_a_hung_model_in_this_process_is_said_to_be_so() -> None:
    runtime, heard = Doubler(), []
    engine = InferenceEngine(ServerConfig(), lambda _: runtime, on_hung=heard.append)
    await engine.placed(ModelConfig("m", "1", "", timeout_s=0.1))
    (entry,) = engine._model_table.entries()
    assert entry.session is not None
    entry.session.batcher.inline = False
    runtime.gate.clear()
    got: list[Any] = []
    for value in (1, 2):
        engine.submit(ask_of(rows([value])), got.append)
        await asyncio.sleep(0.01)
    await until(lambda: len(got) == 2)
    assert all(isinstance(one, Unavailable) for one in got)
    assert heard == [entry.session]
    assert not engine.ready()
    assert not engine.ready("m")
    with pytest.raises(Unavailable, match="hangs"):
        await asked(engine, ask_of(rows([1])))
    runtime.gate.set()
    await engine.close()


@on_loop
async def test_held_requests_have_deadlines_and_can_leave(tmp_path: Path) -> None:
    engine = InferenceEngine(ServerConfig(memory_bytes=1 << 20))
    await engine.placed(ModelConfig("a", "1", str(mlp(tmp_path / "a"))))
    (entry,) = engine._model_table.entries()
    engine._model_table._retire_session(entry)
    x, got = np.ones((1, 32)), []
    cancel = engine.submit(ask_of(x, model="a"), got.append)
    engine.submit(ask_of(x, model="a", deadline=time.monotonic() - 1), got.append)
    engine.submit(ask_of(x, model="a"), got.append)
    assert cancel is not None
    cancel()
    await until(lambda: len(got) == 2)
    assert sorted(type(one).__name__ for one in got) == ["DeadlinePassed", "InferenceResponse"]
    await engine.close()


@on_loop
async def test_what_clients_are_told(tmp_path: Path) -> None:
    engine = InferenceEngine(ServerConfig(repository=str(tmp_path)))
    mlp(tmp_path / "m" / "3")
    done: list[Any] = []
    engine.load("m", {"config": '{"queue": 7}'}, done.append)
    await until(lambda: done)
    assert done == [None]
    assert engine.metadata("m") == {
        "name": "m",
        "versions": ["3"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 32]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
    }
    config = engine.config("m", "3")
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [32]}]
    assert config["max_batch_size"] > 1
    await asked(engine, ask_of(np.ones((2, 32))))
    (stats,) = engine.statistics("m")["model_stats"]
    assert stats["inference_count"] == 2
    assert stats["execution_count"] == 1
    assert stats["inference_stats"]["success"]["count"] == 1
    assert stats["inference_stats"]["success"]["ns"] > 0
    assert engine.index(only_ready=True) == [{"name": "m", "version": "3", "state": "READY", "reason": ""}]
    mlp(tmp_path / "n" / "1")
    assert {"name": "n", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"} in engine.index()
    text = engine.metrics().decode()
    assert 'falaj_infer_requests_total{model="m",version="3",outcome="succeeded"} 1' in text
    await engine.close()


@on_loop
async def test_a_model_that_takes_no_batches_runs_whole_requests() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime, sheet=ModelManifest(batches=False))
    del runtime.ran[:]
    x = np.arange(6).reshape(2, 3)
    answers = await asyncio.gather(*(asked(engine, ask_of(x + index)) for index in range(3)))
    assert [one.outputs[0].shape for one in answers] == [(2, 3)] * 3
    assert runtime.ran == [2, 2, 2]
    assert engine.config("m")["max_batch_size"] == 0
    await engine.close()


@on_loop
async def test_texts_and_several_inputs_in_any_order(tmp_path: Path) -> None:
    from tests.infer.models import ECHOED, echo

    engine = InferenceEngine()
    await engine.placed(ModelConfig("m", "1", str(echo(tmp_path))))
    specs = engine.metadata("m")["inputs"]
    assert len(specs) == len(ECHOED)
    asks = []
    for index in range(4):
        inputs = [_given(spec, 1 + index % 2, index) for spec in specs]
        asks.append(InferenceRequest("m", "", inputs if index % 2 else inputs[::-1]))
    answers = await asyncio.gather(*(asked(engine, ask) for ask in asks))
    for ask, answer in zip(asks, answers, strict=True):
        sent = sorted(_raw(one.data) for one in ask.inputs)
        assert sorted(_raw(one.data) for one in answer.outputs) == sent
    await engine.close()


def _given(spec: dict[str, Any], num: int, seed: int) -> InputTensor:
    shape = (num, *(2 if one == -1 else one for one in spec["shape"][1:]))
    size = int(np.prod(shape))
    if spec["datatype"] == "BYTES":
        return InputTensor(spec["name"], "BYTES", shape, [b"%d-%d" % (seed, at) for at in range(size)])
    kinds = {"FP32": "<f4", "INT64": "<i8", "BOOL": "?"}
    data = ((np.arange(size) + seed) % 2 if spec["datatype"] == "BOOL" else np.arange(size) + seed).astype(
        kinds[spec["datatype"]]
    )
    return InputTensor(spec["name"], spec["datatype"], shape, data.tobytes())


def _raw(data: Any) -> bytes:
    if isinstance(data, list):
        return b"\0".join(data)
    return bytes(data) if isinstance(data, bytes) else data.tobytes()


@pytest.mark.slow
@on_loop
async def test_a_hundred_rounds_give_the_memory_back(tmp_path: Path) -> None:
    folders = [str(encoder(tmp_path / "encoder")), str(cnn(tmp_path / "cnn"))]
    engine = InferenceEngine()

    async def turn(name: str) -> None:
        for index, folder in enumerate(folders):
            await engine.placed(ModelConfig(f"{name}{index}", "1", folder))
        tokens = np.ones((8, 32), np.int64)
        await asked(
            engine, InferenceRequest(f"{name}0", "", [InputTensor("tokens", "INT64", (8, 32), tokens.tobytes())])
        )
        for index in range(2):
            await engine.removed(f"{name}{index}")

    for _ in range(5):
        await turn("m")
    gc.collect()
    before = _rss()
    for _ in range(95):
        await turn("m")
    gc.collect()
    assert _rss() < before * 1.1
    await engine.close()


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@on_loop
async def test_a_version_that_hangs_while_it_goes_is_ended() -> None:
    first, second = Doubler(isolated=True), Doubler()
    made = iter((first, second))
    engine = InferenceEngine(ServerConfig(), lambda _: next(made))
    await engine.placed(ModelConfig("m", "1", "", timeout_s=0.1))
    first.gate.clear()
    first.entered.clear()
    got: list[Any] = []
    engine.submit(ask_of(rows([1])), got.append)
    await until(first.entered.is_set)
    await engine.placed(ModelConfig("m", "1", "", timeout_s=0.1))
    assert float((await asked(engine, ask_of(rows([2])))).outputs[0].data[0, 0]) == 5
    await until(lambda: got and first.closed)
    assert isinstance(got[0], Unavailable)
    await engine.close()


def test_the_engine_needs_numpy_and_nothing_else() -> None:
    """It runs where a GPU is, with torch and little besides."""
    script = (
        "import sys; before = set(sys.modules); import falaj.infer.engine, falaj.infer.runtimes;"
        "print({one.partition('.')[0] for one in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ast.literal_eval(ran.stdout) == {"falaj", "numpy"}


CODE = """
import os, time

def answer(inputs, parameters):
    x = inputs["x"]
    if (x == 13).any():
        os._exit(3)
    if (x == 666).any():
        time.sleep(3600)
    return {"y": x * 2 + 1}
"""


@on_loop
async def test_code_that_crashes_or_hangs_its_process_fails_alone(tmp_path: Path) -> None:
    folder, code = tmp_path / "model", tmp_path / "code"
    folder.mkdir()
    code.mkdir()
    (code / "mine.py").write_text(CODE)
    shape = {"datatype": "FP32", "shape": [-1, 2]}
    sheet = {
        "runtime": "python",
        "code": "mine:answer",
        "inputs": [{"name": "x", **shape}],
        "outputs": [{"name": "y", **shape}],
    }
    (folder / "falaj.json").write_text(json.dumps(sheet))
    engine = InferenceEngine()
    await engine.placed(ModelConfig("m", "1", str(folder), str(code), timeout_s=1.0))
    assert float((await asked(engine, ask_of(rows([1])))).outputs[0].data[0, 0]) == 3
    for bad in (13, 666):
        asks = [asked(engine, ask_of(rows([value]))) for value in (5, bad, 6)]
        got = await asyncio.gather(*asks, return_exceptions=True)
        assert isinstance(got[1], Unavailable), got
        values = [float(one.outputs[0].data[0, 0]) for one in got if isinstance(one, InferenceResponse)]
        assert values == [11, 13]
        again = await asked(engine, ask_of(rows([7])))
        assert float(again.outputs[0].data[0, 0]) == 15
    await engine.close()


class Joined(Doubler):
    """A model that is asked by keys."""

    plan: Any = None
    keys: Any = None

    def replan(self, plan: Any, keys: Any = None) -> None:
        self.plan, self.keys = plan, keys


@on_loop
async def test_which_features_are_read_can_change_while_it_serves() -> None:
    joined, plain = Joined(), Doubler()
    engine = await engine_of({"1": joined, "2": plain})
    engine.replan({"service": "s"}, {"space": {"1": "key"}})
    assert (joined.plan, joined.keys) == ({"service": "s"}, {"space": {"1": "key"}})
    await engine.close()
