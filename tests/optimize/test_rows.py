"""Rows of real files as a model's inputs."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from falaj.core.errors import Invalid
from falaj.core.model_manifest import TensorSpec
from falaj.optimize.dataset_rows import read_rows, split_rows, to_targets

MATRIX = (TensorSpec("x", "FP32", (-1, 2)),)
TABLE = pa.table({"a": [1.0, 2.0, 3.0], "b": [4, 5, 6], "name": ["p", "q", "r"], "label": ["no", "yes", "no"]})


def test_columns_of_numbers_are_one_matrix_in_their_order(tmp_path: Path) -> None:
    parquet.write_table(TABLE, tmp_path / "t.parquet")
    found = read_rows(str(tmp_path), MATRIX, "label", 100, 1)
    assert found.inputs[0].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert found.target is not None
    assert found.target.tolist() == [0, 1, 0]


def test_columns_of_the_inputs_names_go_first(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", image=np.arange(32.0).reshape(2, 16), more=np.arange(2), label=np.array([1, 0]))
    specs = (TensorSpec("image", "FP32", (-1, 1, 4, 4)), TensorSpec("more", "INT64", (-1,)))
    found = read_rows(str(tmp_path), specs, "label", 100, 1)
    assert [one.shape for one in found.inputs] == [(2, 1, 4, 4), (2,)]
    assert [one.dtype.str for one in found.inputs] == ["<f4", "<i8"]


def test_of_many_rows_a_seeded_choice_is_read(tmp_path: Path) -> None:
    csv.write_csv(pa.table({"a": np.arange(50.0), "b": np.arange(50.0)}), tmp_path / "t.csv")
    one, same, other = (read_rows(str(tmp_path), MATRIX, "", 10, seed).inputs[0] for seed in (1, 1, 2))
    assert len(one) == 10
    assert (one == same).all()
    assert (one != other).any()


def test_what_does_not_fit_says_so(tmp_path: Path) -> None:
    parquet.write_table(TABLE, tmp_path / "t.parquet")
    for specs, target in (((TensorSpec("x", "FP32", (-1, 3)),), "label"), (MATRIX, "nothing"), (MATRIX * 2, "")):
        with pytest.raises(Invalid):
            read_rows(str(tmp_path), specs, target, 100, 1)
    parquet.write_table(TABLE.slice(0, 0), tmp_path / "t.parquet")
    with pytest.raises(Invalid, match="no rows"):
        read_rows(str(tmp_path), MATRIX, "", 100, 1)


def test_rows_are_learnt_from_or_judged_by_and_never_both(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(200.0).reshape(100, 2))
    learnt, judged = split_rows(read_rows(str(tmp_path), MATRIX, "", 100, 1), 7)
    assert (len(learnt), len(judged)) == (80, 20)
    assert not set(learnt.inputs[0][:, 0]) & set(judged.inputs[0][:, 0])


def test_targets() -> None:
    assert to_targets(np.array([3, 1])).tolist() == [3, 1]
    assert to_targets(np.array([-1, 1])).tolist() == [0, 1]
    assert to_targets(np.array([True, False])).tolist() == [1, 0]
    assert to_targets(np.array([0.5])).dtype == np.float32
    for empty in (np.array([1.0, np.nan]), np.array(["a", None], object)):
        with pytest.raises(Invalid):
            to_targets(empty)


def test_columns_that_the_sheet_names(tmp_path: Path) -> None:
    whole = {"b": np.arange(4.0), "a": np.arange(4.0) + 10, "label": np.arange(4), "other": np.ones(4)}
    np.savez(tmp_path / "rows.npz", **whole)
    found = read_rows(str(tmp_path), (TensorSpec("x", "FP32", (-1, 2)),), "label", 100, 1, "a, b")
    np.testing.assert_array_equal(found.inputs[0], np.stack([whole["a"], whole["b"]], 1))
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "tables").mkdir()
    pq.write_table(pa.table({"a": pa.array([1, None, 3]), "b": [0.5, None, 2.5]}), tmp_path / "tables" / "t.parquet")
    found = read_rows(str(tmp_path / "tables"), (TensorSpec("x", "FP32", (-1, 2)),), "", 100, 1, "a,b")
    np.testing.assert_array_equal(found.inputs[0], np.array([[1, 0.5], [np.nan, np.nan], [3, 2.5]], np.float32))
    with pytest.raises(Invalid, match="no column 'c'"):
        read_rows(str(tmp_path / "tables"), MATRIX, "", 100, 1, "a,c")
