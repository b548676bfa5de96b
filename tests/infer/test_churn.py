"""Everything at once: requests of all kinds while versions are swapped and models are put away for want of memory."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import FalajError
from falaj.infer.engine import InferenceEngine
from falaj.infer.records import ModelConfig, ServerConfig
from falaj.oip.tensors import InferenceResponse
from tests.infer.running import POISON, Doubler, ask_of, on_loop, until


class Uneven(Doubler):
    """Mostly quick, now and then slow; must never be run once it was closed."""

    chance = random.Random(1)

    def run(self, inputs: Any, parameters: Any) -> Any:
        if self.chance.random() < 0.03:
            end = time.monotonic() + self.chance.random() * 1e-3
            while time.monotonic() < end:
                pass
        assert not self.closed
        return super().run(inputs, parameters)


class Churn:
    """Asks, leaves, and counts what comes back."""

    def __init__(self, engine: InferenceEngine, seed: int) -> None:
        self.engine, self.chance = engine, random.Random(seed)
        self.open: set[int] = set()
        self.counts: dict[str, int] = {}
        self.wrong: list[Any] = []

    def ask(self, number: int) -> None:
        chance = self.chance
        x = np.full((chance.randint(1, 4), chance.choice([2, 3])), number % 1000, np.float32)
        if chance.random() < 0.01:
            x[0, 0] = POISON
        deadline = chance.choice([0, 0, 0, time.monotonic() + chance.random() * 0.003])
        ask = ask_of(x, model=chance.choice("abc"), id=str(number), priority=chance.choice([0, 0, 1, 12]))
        ask.deadline = deadline
        self.open.add(number)
        cancel = self.engine.submit(ask, lambda got: self._take(number, x, got))
        if cancel is not None and chance.random() < 0.05:
            asyncio.get_running_loop().call_later(chance.random() * 0.002, self._leave, number, cancel)

    def _leave(self, number: int, cancel: Any) -> None:
        cancel()
        self.open.discard(number)

    def _take(self, number: int, x: Any, got: InferenceResponse | FalajError) -> None:
        if number not in self.open:
            self.wrong.append((number, "twice"))
        self.open.discard(number)
        kind = type(got).__name__
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if isinstance(got, InferenceResponse):
            right = got.id == str(number) and np.array_equal(got.outputs[0].data, 2 * x + 1)
        else:
            right = kind in ("DeadlinePassed", "QueueFull") or (kind == "UserCodeFailed" and x[0, 0] == POISON)
        if not right:
            self.wrong.append((number, got))


@pytest.mark.parametrize("seconds", [1.5, pytest.param(20.0, marks=pytest.mark.slow)])
@on_loop
async def test_nothing_is_lost_answered_twice_or_left_behind(seconds: float, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(1000))
    made: list[Uneven] = []

    def load(config: ModelConfig) -> Uneven:
        del config
        made.append(Uneven(isolated=len(made) % 5 < 2))
        return made[-1]

    engine = InferenceEngine(ServerConfig(memory_bytes=2500), load)
    configs = [ModelConfig(name, "1", str(tmp_path), queue=200) for name in "abc"]
    for config in configs:
        await engine.placed(config)
    churn, number, end = Churn(engine, 7), 0, time.monotonic() + seconds
    swapping: asyncio.Task[None] | None = None
    while time.monotonic() < end:
        for _ in range(churn.chance.randint(0, 60)):
            number += 1
            churn.ask(number)
        await asyncio.sleep(churn.chance.choice([0, 0, 0.001]))
        if swapping is None or swapping.done():
            swapping = asyncio.create_task(engine.placed(churn.chance.choice(configs)))
    assert swapping is not None
    await swapping
    await until(lambda: not churn.open and not engine.busy)
    assert churn.wrong == []
    assert churn.counts["InferenceResponse"] > 100
    await until(lambda: sum(not one.closed for one in made) <= 2)
    assert len(made) > 10
    await engine.close()
