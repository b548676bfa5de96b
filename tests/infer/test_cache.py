import asyncio
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import UserCodeFailed
from tests.infer.running import POISON, Doubler, ask_of, asked, engine_of, on_loop, rows


@on_loop
async def test_what_comes_again_is_answered_without_a_run() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime, cache=2)
    del runtime.ran[:]
    for value in (1, 1, 2, 1, 3, 2):  # 3 pushes out the one asked for least recently: 2
        answer = await asked(engine, ask_of(rows([value]), id=str(value)))
        assert answer.id == str(value)
        assert float(answer.outputs[0].data[0, 0]) == 2 * value + 1
    assert len(runtime.ran) == 4
    (stats,) = engine.statistics("m")["model_stats"]
    assert stats["inference_stats"]["cache_hit"]["count"] == 2
    assert stats["inference_stats"]["success"]["count"] == 6
    await engine.close()


@on_loop
async def test_other_parameters_outputs_and_shapes_are_other_requests_and_errors_are_not_kept() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime, cache=100)
    del runtime.ran[:]
    x = np.arange(4, dtype=np.float32)
    asks: list[dict[str, Any]] = [{}, {"parameters": {"a": 1}}, {"outputs": ["y"]}]
    for one in asks:
        await asked(engine, ask_of(x.reshape(2, 2), **one))
    await asked(engine, ask_of(x.reshape(1, 4)))
    assert len(runtime.ran) == 4
    for _ in range(2):
        with pytest.raises(UserCodeFailed):
            await asked(engine, ask_of(rows([POISON])))
    assert len(runtime.ran) == 6
    await asyncio.gather(*(asked(engine, ask_of(rows([5]))) for _ in range(3)))
    await engine.close()
