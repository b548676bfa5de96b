"""Counting beside a served model: what it is given and answers, whatever that is, and never at anybody's cost."""

import asyncio
import base64
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import Invalid
from falaj.core.model_manifest import TensorSpec
from falaj.drift.profiles import build_profile, encode_profile, hash_profile
from falaj.drift.records import PROFILE_FILE, DataProfile
from falaj.drift.tally import DataTally
from falaj.infer import row_counting, tally_carrier
from falaj.infer.engine import InferenceEngine
from falaj.infer.records import Arrays, CountingConfig, ModelConfig, ServerConfig
from falaj.infer.request_queue import BatchKey, QueuedRequest
from falaj.infer.row_counting import CountingGovernor, RowCounter, match_tensors
from falaj.infer.tally_carrier import TallyCarrier
from falaj.infer.tensor_columns import PREDICTION_COLUMN, choose_highest, score_columns
from falaj.oip.upstream_server import UpstreamClient, UpstreamServer
from tests.infer import models
from tests.infer.naming import columns_of, named
from tests.infer.running import Doubler, ask_of, asked, on_loop, until

RANDOM = np.random.default_rng(1)
KEY = "hop-key-of-the-tests"
ALL = CountingConfig(flush_s=0.05, share=1e9)


def _spec(name: str, datatype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, datatype, (-1, *shape))


def _profile(inputs: Mapping[str, Any], outputs: Mapping[str, Any], specs: Any, **more: Any) -> DataProfile:
    tensors = named(*specs)
    given, made = columns_of(tensors, inputs), columns_of(tensors, outputs)
    if scores := score_columns(tensors, specs[1]):
        made[PREDICTION_COLUMN] = choose_highest(np.stack([made[name] for name in scores], axis=1)).astype(int)
    return build_profile(given, predictions=made, tensors=tensors, **more)


def _by_name(tally: DataTally) -> dict[str, list[int]]:
    return {axis.name: tally.of(at).tolist() for at, axis in enumerate(tally.profile.axes)}


def _bf16(values: Any) -> Any:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


X = RANDOM.normal(size=(600, 3)).astype(np.float32)
TEXTS = RANDOM.choice(np.array([b"red", b"blue"], object), 600)
WHOLE = RANDOM.integers(0, 10**6, 600)
FLAGS = RANDOM.random(600) < 0.5
IMAGE = RANDOM.normal(size=(600, 1, 8, 40, 40)).astype(np.float16)
SCORES = RANDOM.dirichlet((1, 1, 1), 600).astype(np.float32)
SPECS = (
    (_spec("x", "FP32", 3), _spec("text", "BYTES"), _spec("whole", "INT64", 1), _spec("flag", "BOOL"),
     _spec("image", "FP16", 1, 8, 40, 40)),
    (_spec("scores", "FP32", 3),),
)  # fmt: skip
INPUTS = [X, TEXTS, WHOLE.reshape(-1, 1), FLAGS, IMAGE]
PROFILE = _profile(
    dict(zip(("x", "text", "whole", "flag", "image"), INPUTS, strict=True)), {"scores": SCORES}, SPECS, segment="text"
)


def test_all_kinds_of_tensors_are_counted_as_the_reference_was() -> None:
    found = RowCounter(PROFILE, *SPECS, ALL, batches=True)
    for first in range(0, 600, 50):
        found.note([one[first : first + 50] for one in INPUTS], [SCORES[first : first + 50]])
    tally = found.take()
    assert (tally.rows, tally.seen, tally.odd) == (600, 600, 0)
    wanted = {axis.name: list(counts) for axis, counts in zip(PROFILE.axes, PROFILE.counts, strict=True)}
    assert _by_name(tally) == wanted
    assert set(wanted) >= {"x[0]", "text", "whole", "flag", "image.mean", "image.std", "scores[2]", PREDICTION_COLUMN}
    for at in range(3):
        assert tally.of(0, at).tolist() == (list(PROFILE.by_segment[at][0]))
    assert found.take().seen == 0


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([X[:, :2], *INPUTS[1:]], [SCORES]),
        ([X[:, 0], *INPUTS[1:]], [SCORES]),
        (INPUTS, [SCORES[:, :1]]),
        (INPUTS, [SCORES[:7]]),
        (INPUTS, []),
        ([X.astype(object), *INPUTS[1:]], [np.full((600, 3), None, object)]),
        ([np.full((600, 3), b"no number", object), *INPUTS[1:]], [SCORES]),
    ],
)
def test_rows_of_another_shape_are_counted_as_odd_and_hurt_nobody(inputs: Any, outputs: Any) -> None:
    found = RowCounter(PROFILE, *SPECS, ALL, batches=True)
    found.note(inputs, outputs)
    found.note([one[:5] for one in INPUTS], [SCORES[:5]])
    tally = found.take()
    assert (tally.odd, tally.seen) == (600, 605) or (tally.rows == 605 and tally.seen == 605)
    DataTally.from_bytes(tally.to_bytes(), PROFILE)


@pytest.mark.parametrize(
    ("datatype", "given"),
    [("BF16", _bf16(X)), ("FP16", X.astype(np.float16)), ("FP64", X.astype(float)), ("FP32", X)],
)
def test_numbers_of_any_width(datatype: str, given: Any) -> None:
    specs = ((_spec("x", datatype, 3),), (_spec("y", "FP32", 1),))
    profile = _profile({"x": X}, {"y": X[:, :1]}, specs)
    found = RowCounter(profile, *specs, ALL, batches=True)
    found.note([given], [X[:, :1]])
    tally = found.take()
    assert tally.rows == 600
    assert int(tally.of(0)[:-4].sum()) >= 597  # Rounded, one may leave the range.
    apart = np.abs(np.cumsum(tally.of(0)[:-4]) - np.cumsum(profile.counts[0][:-4])).max()
    assert apart <= 6  # 7 bits of a number move a few over an edge.


def test_nan_scores_and_infinite_inputs() -> None:
    specs = ((_spec("x", "FP32", 3),), (_spec("scores", "FP32", 3),))
    profile = _profile({"x": X}, {"scores": SCORES}, specs)
    found = RowCounter(profile, *specs, ALL, batches=True)
    found.note([np.full((4, 3), np.inf, np.float32)], [np.full((4, 3), np.nan, np.float32)])
    counted = _by_name(found.take())
    assert counted["x[0]"][-3] == counted["scores[0]"][-4] == counted[PREDICTION_COLUMN][-4] == 4


def test_a_model_that_takes_no_batches_has_one_row_a_run() -> None:
    specs = ((TensorSpec("x", "FP32", (3,)),), (TensorSpec("y", "FP32", ()),))
    profile = replace(build_profile({f"c{at}": X[:, at] for at in range(3)}, predictions={"y": X[:, 0]}), tensors={})
    found = RowCounter(profile, *specs, ALL, batches=False)
    for row in X[:5]:
        found.note([row], [row[0]])
    assert found.take().rows == 5


def test_of_a_huge_run_some_rows_are_counted() -> None:
    specs = ((_spec("x", "FP32", 3),), (_spec("y", "FP32", 1),))
    found = RowCounter(_profile({"x": X}, {"y": X[:, :1]}, specs), *specs, ALL, batches=True)
    rows = row_counting.MAX_RUN_ROWS * 3 + 5
    found.note([np.repeat(X[:1], rows, axis=0)], [np.zeros((rows, 1), np.float32)])
    tally = found.take()
    assert tally.seen == rows
    assert rows // 4 - 1 <= tally.rows <= row_counting.MAX_RUN_ROWS


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"x": ("a", "b", "c"), "z": ("d",)}, "does not have"),
        ({"x": ("a", "b")}, "3 values a row"),
        ({"text": ("a",)}, "is text"),
    ],
)
def test_a_profile_of_another_model_is_not_used(tensors: Any, said: str) -> None:
    specs = ((_spec("x", "FP32", 3), _spec("text", "BYTES")), (_spec("y", "FP32", 1),))
    profile = replace(build_profile({name: X[:, at] for at, name in enumerate("abc")}), tensors=tensors)
    with pytest.raises(Invalid, match=said):
        match_tensors(profile, *specs)


@pytest.mark.parametrize("busy", [1.0, 0.3, 0.0])
def test_the_governor_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch, busy: float) -> None:
    now = [100.0]
    monkeypatch.setattr(row_counting, "monotonic", lambda: now[0])
    monkeypatch.setattr(row_counting, "process_time", lambda: now[0] * busy)
    random.seed(7)
    governor, taken = CountingGovernor(0.02), 0.0
    for turn in range(60_000):  # Ten thousand runs a second, each of which takes 400 us to count.
        now[0] += 1e-4
        if governor.wants():
            governor.spent(4e-4)
            taken += 4e-4 if turn > 30_000 else 0.0
    wanted = 0.02 * max(busy, 0.1) * 3.0
    assert 0.3 * wanted < taken < 1.7 * wanted
    now[0] += 3600
    for _ in range(400):
        now[0] += 0.3
        governor.spent(1e-5)
    assert governor.share == 1.0


class Wide(Doubler):
    """Three columns."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.outputs = (_spec("x", "FP32", 3),), (_spec("y", "FP32", 3),)


DOUBLED = _profile({"x": X}, {"y": X * 2 + 1}, ((_spec("x", "FP32", 3),), (_spec("y", "FP32", 3),)))


def _engine() -> InferenceEngine:
    return InferenceEngine(ServerConfig(), lambda config: Wide())


@on_loop
async def test_a_session_counts_what_it_runs_and_not_its_warming() -> None:
    engine = _engine()
    await engine.placed(ModelConfig("m", "1", "", watch=ALL))
    session = engine.sessions()[0]
    session.watch(session.watcher(DOUBLED))
    await asyncio.gather(*(asked(engine, ask_of(row)) for row in X[:40, None, :]))
    found = session.watching
    assert found is not None
    tally = found.take()
    assert tally.rows == tally.seen == 40
    wanted = DataTally(DOUBLED)
    wanted.add({f"x[{at}]": X[:40, at] for at in range(3)})
    assert (tally.of(0) == wanted.of(0)).all()
    session.batcher.note = None
    await engine.close()


@on_loop
async def test_without_a_share_nothing_is_counted() -> None:
    engine = _engine()
    await engine.placed(ModelConfig("m", "1", "", watch=CountingConfig(share=0.0)))
    engine.sessions()[0].watch(engine.sessions()[0].watcher(DOUBLED))
    assert engine.sessions()[0].watching is None
    await engine.close()


@pytest.mark.parametrize("broken", [False, True])
def test_a_profile_in_the_folder_is_used_and_a_broken_one_stops_nobody(
    tmp_path: Path, broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @on_loop
    async def go() -> None:
        folder = models.mlp(tmp_path / "m")
        rows = RANDOM.normal(size=(300, 32)).astype(np.float32)
        specs = ((_spec("x", "FP32", 32),), (_spec("y", "FP32", 1),))
        profile = _profile({"x": rows}, {"y": models.mlp_of(rows)}, specs)
        (folder / PROFILE_FILE).write_bytes(b'{"axes": 3}' if broken else encode_profile(profile))
        engine = InferenceEngine(ServerConfig())
        await engine.placed(ModelConfig("m", "1", str(folder)))
        await asked(engine, ask_of(rows[:8]))
        found = engine.sessions()[0].watching
        assert (found is None) == broken
        assert ("is not used" in caplog.text) == broken
        if found is not None:
            assert found.take().rows == 8
        await engine.close()

    go()


class Gateway:
    """The other end of a hop, which hears everything."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    async def come(self, address: tuple[str, int]) -> "Gateway":
        self.client = UpstreamClient(KEY)
        self.client.on_control = lambda said: self.heard.append(said["tally"])
        await asyncio.get_running_loop().create_connection(lambda: self.client, *address)
        await until(lambda: self.client.ready)
        return self

    def tallies(self, profile: DataProfile) -> list[DataTally]:
        return [DataTally.from_bytes(base64.b64decode(one["data"]), profile) for one in self.heard]


@on_loop
async def test_deltas_are_carried_until_somebody_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_carrier, "RESEND_INTERVAL_S", 3600.0)
    engine = _engine()
    await engine.placed(ModelConfig("m", "1", "", watch=ALL))
    door = UpstreamServer(None, None, KEY)
    carrier = TallyCarrier(engine.sessions, door)
    door.on_control = carrier.control
    address = await door.start("127.0.0.1", 0)
    carrier.start()
    old = await Gateway().come(address)  # It says nothing of taking words, so it gets none.
    first = await Gateway().come(address)
    first.client.tell({"takes": True})
    text, name = encode_profile(DOUBLED).decode(), hash_profile(DOUBLED)
    # Nobody could follow these.
    for said in ({"profile": "{"}, {"profile": text, "version": "7", "digest": name}, {"profile": 3}, {"kept": "all"}):
        first.client.tell(said)
    first.client.tell({"profile": text, "version": "1", "digest": name})
    await until(lambda: engine.sessions()[0].watching)
    await asked(engine, ask_of(X[:30]))
    await until(lambda: len(first.heard) == 1)
    await asked(engine, ask_of(X[:20]))
    await until(lambda: len(first.heard) == 2)
    assert [one["n"] for one in first.heard] == [1, 2]
    assert [one.rows for one in first.tallies(DOUBLED)] == [30, 20]
    assert first.heard[0]["profile"] == hash_profile(DOUBLED)
    assert first.heard[0]["until"] <= first.heard[1]["at"] + 1e-3
    first.client.tell({"kept": [1]})
    await asyncio.sleep(0.02)
    first.client.end()  # What it did not acknowledge goes to the next one, under the same number.
    second = await Gateway().come(address)
    second.client.tell({"takes": True})
    await until(lambda: second.heard)
    assert [(one["n"], one["life"]) for one in second.heard] == [(2, carrier.life)]
    second.client.tell({"kept": [2]})
    await asked(engine, ask_of(X[:10]))
    draining = asyncio.create_task(carrier.drain(5.0))
    await until(lambda: len(second.heard) == 2)
    assert not draining.done()
    second.client.tell({"refused": [3]})
    await draining
    assert not old.heard
    await door.drain(0.0)
    await engine.close()


@on_loop
async def test_while_nobody_takes_anything_nothing_is_lost_and_nothing_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_carrier, "MAX_PENDING_BYTES", 1)
    engine = _engine()
    await engine.placed(ModelConfig("m", "1", "", watch=ALL))
    session = engine.sessions()[0]
    session.watch(session.watcher(DOUBLED))
    door = UpstreamServer(None, None, KEY)
    carrier = TallyCarrier(engine.sessions, door)
    door.on_control = carrier.control
    address = await door.start("127.0.0.1", 0)
    for _ in range(5):
        await asked(engine, ask_of(X[:10]))
        carrier.flush(session)
        await until(lambda: not carrier._packing_count)
    gateway = await Gateway().come(address)
    gateway.client.tell({"takes": True})
    carrier.start()
    await until(lambda: len(gateway.heard) == 1)
    gateway.client.tell({"kept": [1]})
    await until(lambda: len(gateway.heard) == 2)
    assert [one.rows for one in gateway.tallies(DOUBLED)] == [10, 40]
    gateway.client.tell({"kept": [2]})
    await carrier.drain(1.0)
    await door.drain(0.0)
    await engine.close()


def test_of_a_model_asked_by_keys_the_features_are_counted() -> None:
    from falaj.infer.feature_lookup import FeatureRuntime

    class Features:
        inputs = (_spec("key", "INT64"),)

        def arrays(self, inputs: Arrays) -> list[Any]:
            return [X[inputs[0]]]

    joined = FeatureRuntime(Wide(), Features())  # type: ignore[arg-type]
    joined.run([np.array([1, 2])], {})  # As it is warmed: nobody counts yet.
    joined.run([np.array([4, 5, 6])], {})
    assert (joined.given()[0] == X[[4, 5, 6]]).all()
    assert joined.given() == ()  # Nothing is held until the next run.
    assert joined.watched_inputs[0].name == "x"


def _members(*rows: int, name: bytes = b"") -> list[QueuedRequest]:
    made = []
    for at, count in enumerate(rows):
        ask = ask_of(X[:count])
        ask.id, ask.name = f"own-{at}", name and b"%b-%d" % (name, at)
        made.append(QueuedRequest(ask, lambda _: None, BatchKey((), {}, 1, runs_alone=False), count, 0.0))
    return made


@pytest.mark.parametrize("size", [1, 3, row_counting.MAX_RUN_ROWS + 700])
def test_rows_that_are_drawn_know_their_request(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_counting, "DELTA_SAMPLE_ROWS", 10_000)
    specs = ((_spec("x", "FP32", 3),), (_spec("y", "FP32", 1),))
    values = np.arange(2 * size, dtype=np.float32)
    x, y = np.repeat(values[:, None], 3, 1), values[:, None]
    found = RowCounter(_profile({"x": x}, {"y": y}, specs), *specs, ALL, batches=True)
    found.note([x], [y], _members(size, size, name=b"gateway"))
    found.note([x], [y], _members(size, size))
    found.note([x], [y])  # Whoever is nobody's request.
    sample = found.take().sample
    axis = found.profile.axes[0]
    place = np.round(sample.values[:, 0] * axis.std + axis.mean) >= size
    for id_, second in zip(sample.ids, place.tolist(), strict=True):
        assert id_ in ("", f"gateway-{int(second)}", f"own-{int(second)}")
    kinds = {id_.partition("-")[0] for id_ in sample.ids}
    assert kinds == {"gateway", "own", ""}
