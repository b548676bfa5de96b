import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import UserCodeFailed
from falaj.infer import request_log
from falaj.infer.records import RequestLogConfig, ServerConfig
from tests.infer.running import POISON, Doubler, ask_of, asked, engine_of, on_loop, rows


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_bytes().splitlines()]


@on_loop
async def test_requests_and_answers_are_written_down_whole(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    engine = await engine_of(Doubler(), config=ServerConfig(journal=RequestLogConfig(str(folder), sample=1.0)))
    x = np.array([[1.5, np.nan]], np.float32)
    await asked(engine, ask_of(x, id="one"))
    with pytest.raises(UserCodeFailed):
        await asked(engine, ask_of(rows([POISON]), id="two"))
    await engine.close()
    one, two = _lines(folder)
    assert (one["id"], one["model"], one["version"], one["status"]) == ("one", "m", "1", 200)
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(one["inputs"][0]["raw"]), np.float32), x[0])
    made = np.frombuffer(base64.b64decode(one["outputs"][0]["raw"]), np.float32)
    np.testing.assert_array_equal(made, 2 * x[0] + 1)
    assert (two["id"], two["status"], two["error"]["code"]) == ("two", 422, "user-code-failed")
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())


@on_loop
async def test_files_take_turns_within_their_bound(tmp_path: Path) -> None:
    engine = await engine_of(
        Doubler(), config=ServerConfig(journal=RequestLogConfig(str(tmp_path), 1.0, most_bytes=40_000))
    )
    for value in range(400):
        await asked(engine, ask_of(rows([value], 8), id=str(value)))
    await engine.close()
    files = sorted(tmp_path.iterdir())  # noqa: ASYNC240 - nobody waits for us
    assert 1 < len(files) <= request_log.MAX_LOG_FILES
    assert sum(file.stat().st_size for file in files) <= 40_000
    assert _lines(tmp_path)[-1]["id"] == "399"


@on_loop
async def test_a_sample_is_a_part_and_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none, some = tmp_path / "none", tmp_path / "some"
    engine = await engine_of(Doubler(), config=ServerConfig(journal=RequestLogConfig(str(none), 0.0)))
    await asked(engine, ask_of(rows([1])))
    await engine.close()
    assert _lines(none) == []
    log = request_log.RequestLog(RequestLogConfig(str(some), 1.0))
    monkeypatch.setattr(request_log, "MAX_QUEUED_BYTES", 100)
    large = ask_of(rows([1] * 100))
    log.noting(large, lambda _: None)(UserCodeFailed("x"))
    log.noting(ask_of(rows([1])), lambda _: None)(UserCodeFailed("x"))
    log.close()
    assert log.dropped == 1
    assert [line["dropped_before"] for line in _lines(some)] == [1]
