"""A model over all rows of a dataset: the same answers as one by one, in pieces that are made once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.core.errors import CorruptData, Invalid
from falaj.infer.bulk import BulkOrder, parse_order, predict_rows
from falaj.infer.records import ModelConfig
from tests.infer import models

ROWS = 1000


@pytest.fixture
def x() -> Any:
    return np.random.default_rng(5).standard_normal((ROWS, 32)).astype(np.float32)


def order(home: Path, **more: Any) -> BulkOrder:
    folder = models.mlp(home / "model")
    return BulkOrder(ModelConfig("fraud.scorer", "1", str(folder)), rows=64, piece=300, **more)


def told(out: Path) -> Any:
    return pa.concat_tables([pq.read_table(one) for one in sorted(out.glob("*.parquet"))])


def test_numpy_rows_give_what_the_model_says(tmp_path: Path, x: Any) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", x)
    assert predict_rows(order(tmp_path), tmp_path / "data", tmp_path / "kept", tmp_path / "out") == ROWS
    assert len(list((tmp_path / "out").iterdir())) == 4
    np.testing.assert_allclose(told(tmp_path / "out")["y"].to_numpy(), models.mlp_of(x)[:, 0], rtol=1e-4, atol=1e-5)


def test_columns_side_by_side_with_keys_beside_what_is_predicted(tmp_path: Path, x: Any) -> None:
    (tmp_path / "data").mkdir()
    columns = {f"f{at:02d}": x[:, at] for at in range(32)}
    names = [f"c{at}" for at in range(ROWS)]
    pq.write_table(pa.table({"id": names, **columns}), tmp_path / "data" / "rows.parquet", row_group_size=128)
    backwards = tuple(reversed(columns))
    for number, (asked, wanted) in enumerate([((), x), (backwards, x[:, ::-1])]):
        out = tmp_path / f"out-{number}"
        predict_rows(order(tmp_path, columns=asked, keep=("id",)), tmp_path / "data", tmp_path / "kept", out)
        found = told(out)
        assert found["id"].to_pylist() == names
        np.testing.assert_allclose(found["y"].to_numpy(), models.mlp_of(wanted)[:, 0], rtol=1e-4, atol=1e-5)


def test_pieces_that_are_there_are_not_made_again(tmp_path: Path, x: Any) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", x)
    done = order(tmp_path)
    predict_rows(done, tmp_path / "data", tmp_path / "kept", tmp_path / "out")
    parts = sorted((tmp_path / "kept").rglob("part-*.parquet"))
    parts[1].unlink()  # as if it had been killed there
    before = [one.stat().st_mtime_ns for one in (parts[0], parts[2], parts[3])]
    predict_rows(done, tmp_path / "data", tmp_path / "kept", tmp_path / "again")
    assert [one.stat().st_mtime_ns for one in (parts[0], parts[2], parts[3])] == before
    assert told(tmp_path / "again") == told(tmp_path / "out")


def test_what_does_not_fit_is_said(tmp_path: Path, x: Any) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1]}), tmp_path / "data" / "rows.parquet")
    places = (tmp_path / "data", tmp_path / "kept", tmp_path / "out")
    with pytest.raises(Invalid, match="2 columns for 'x', which takes 32"):
        predict_rows(order(tmp_path), *places)
    with pytest.raises(Invalid, match="no column 'c'"):
        predict_rows(order(tmp_path, columns=("c",) * 32), *places)
    with pytest.raises(Invalid, match="is kept, and predicted"):
        predict_rows(order(tmp_path, keep=("y",)), *places)


def test_other_bytes_than_those_approved_are_not_loaded(tmp_path: Path, x: Any) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", x)
    folder = models.mlp(tmp_path / "model")
    text = json.dumps({"model": {"name": "m", "version": "1", "files": {"model.onnx": "0" * 64}}, "rows": 8})
    with pytest.raises(CorruptData):
        predict_rows(parse_order(text, str(folder)), tmp_path / "data", tmp_path / "kept", tmp_path / "out")
