"""CSV files as samples."""

from pathlib import Path

import numpy as np
import pytest

from falaj.core.errors import CorruptData, Invalid
from falaj.feed.batch_loader import BatchLoader
from falaj.feed.sources import open_source


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_files_of_a_folder_are_one_table(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, a="n,x,who\n1,0.5,amal\n2,1.5,\n", b="n,x,who\n3,2,sara\n"))
    assert len(source) == 3
    batch = source.take(np.array([2, 0, 1]))
    assert batch["n"].tolist() == [3, 1, 2]
    assert batch["x"].tolist() == [2.0, 0.5, 1.5]
    assert batch["who"] == ["sara", "amal", ""]


def test_one_file_is_fed_in_an_order_that_readers_do_not_change(tmp_path: Path) -> None:
    rows = "\n".join(f"{n},{n * n}" for n in range(24))
    path = write(tmp_path, a=f"n,square\n{rows}\n") / "a.csv"
    alone = [given.batch["n"].tolist() for given in BatchLoader(path, 8, micro=4, seed=3).stream(0, 6)]
    pair = [
        [given.batch["n"].tolist() for given in BatchLoader(path, 8, micro=4, seed=3).stream(0, 6, n, 2)]
        for n in (0, 1)
    ]
    assert alone == [one for both in zip(*pair, strict=True) for one in both]
    assert sorted(n for micro in alone[:6] for n in micro) == list(range(24))


def test_only_some_columns(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, a="n,x\n1,2\n"), columns=["x"])
    assert set(source.take(np.array([0]))) == {"x"}
    with pytest.raises(Invalid, match="no column y"):
        open_source(tmp_path, columns=["y"])


def test_bad_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, a="n,x\n1,2\n", b="n,y\n1,2\n")
    with pytest.raises(Invalid, match=r"b\.csv has other columns than a\.csv"):
        open_source(tmp_path)
    with pytest.raises(CorruptData, match=r"torn\.csv"):
        open_source(write(tmp_path, torn="n,x\n1,2\n3\n") / "torn.csv")
    with pytest.raises(Invalid, match="empty"):
        BatchLoader(write(tmp_path, none="n,x\n") / "none.csv", 4)
