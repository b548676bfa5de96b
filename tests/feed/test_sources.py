"""What samples lie in, good and bad: each fault is one clear error that names the file."""

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from falaj.core.errors import Conflict, CorruptData, Invalid, NotFound
from falaj.feed.batch_loader import BatchLoader
from falaj.feed.shards import verify_shards, write_shards
from falaj.feed.sources import open_source
from tests.feed.shelf import SIZE, WRITE, Sized, Streamed, columns, numbers, put, table

ALL = np.arange(SIZE)


def whole(source: Any) -> dict[str, Any]:
    return source.take(np.arange(len(source)))


@pytest.mark.parametrize("kind", [*WRITE, "arrays"])
def test_a_missing_column_is_told_with_those_there_are(kind: str, tmp_path: Path) -> None:
    what = put(kind, tmp_path / "x")
    with pytest.raises(Invalid, match=r"nope.*x"):
        whole(open_source(what, columns=["nope"]))


@pytest.mark.parametrize("kind", [*WRITE, "arrays"])
def test_only_the_columns_asked_for_come(kind: str, tmp_path: Path) -> None:
    name = "y.cls" if kind == "tar" else "y"
    found = whole(open_source(put(kind, tmp_path / "x"), columns=[name]))
    assert list(found) == [name]
    assert list(found[name]) == list(range(SIZE))


@pytest.mark.parametrize("kind", list(WRITE))
def test_a_truncated_file_is_named(kind: str, tmp_path: Path) -> None:
    folder = put(kind, tmp_path / "x")
    victim = min(file for file in folder.iterdir() if file.suffix not in {".json", ".index"})
    os.truncate(victim, victim.stat().st_size * 2 // 3)
    with pytest.raises((CorruptData, Invalid), match=victim.name):
        whole(open_source(folder))


@pytest.mark.parametrize("kind", list(WRITE))
def test_an_empty_or_strange_file_is_named(kind: str, tmp_path: Path) -> None:
    folder = put(kind, tmp_path / "x")
    victim = min(file for file in folder.iterdir() if file.suffix not in {".json", ".index"})
    for found in (b"", b"nonsense, and not a little of it" * 40):
        if kind == "jsonl" and not found:
            continue
        victim.write_bytes(found)
        with pytest.raises((CorruptData, Invalid), match=victim.name):
            whole(open_source(folder))


@pytest.mark.parametrize("kind", ["parquet", "feather", "jsonl", "tar"])
def test_a_file_that_changes_under_a_reader_is_named(kind: str, tmp_path: Path) -> None:
    folder = put(kind, tmp_path / "x")
    source = open_source(folder)
    victim = next(iter(sorted(folder.glob(f"*.{'tar' if kind == 'tar' else kind}"))))
    victim.write_bytes(victim.read_bytes() + b" ")
    with pytest.raises(CorruptData, match=rf"{victim.name} changed"):
        whole(source)


def test_a_torn_row_group_is_named_with_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pa.parquet.write_table(table(), file, row_group_size=100, compression="zstd", use_dictionary=False)
    about = pa.parquet.ParquetFile(file).metadata.row_group(2).column(1)
    raw = bytearray(file.read_bytes())
    start = about.data_page_offset
    raw[start : start + about.total_compressed_size] = b"\xff" * about.total_compressed_size
    file.write_bytes(raw)
    with pytest.raises(CorruptData, match=r"rows 200 to 299 of .*a\.parquet"):
        whole(open_source(file))


def test_mixed_kinds_are_refused_in_one_sentence(tmp_path: Path) -> None:
    put("npy", tmp_path)
    put("parquet", tmp_path)
    with pytest.raises(Invalid, match=r"several kinds: 2 of Parquet \(a\.parquet\), 2 of numpy \(x\.npy\)"):
        open_source(tmp_path)


def test_nothing_to_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("hello")
    with pytest.raises(Invalid, match="no samples"):
        open_source(tmp_path)
    with pytest.raises(NotFound):
        open_source(tmp_path / "nowhere")
    with pytest.raises(Invalid, match="no source"):
        open_source(7)
    with pytest.raises(Invalid, match="once only"):
        open_source(iter([1]))


def test_hidden_files_and_other_suffixes_are_left_alone(tmp_path: Path) -> None:
    put("parquet", tmp_path)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part.npy").write_bytes(b"x")
    (tmp_path / "README.md").write_text("hello")
    assert len(open_source(tmp_path)) == SIZE


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="one length: x has 3, y has 4"):
        open_source({"x": np.zeros(3), "y": np.zeros(4)})
    np.save(tmp_path / "x.npy", np.zeros(3))
    np.save(tmp_path / "y.npy", np.zeros(4))
    with pytest.raises(Invalid, match="cut differently"):
        open_source(tmp_path)


def test_tensors_that_numpy_has_no_word_for_are_taken_as_they_are() -> None:
    feed = BatchLoader({"x": torch.arange(10).bfloat16()}, 5, shuffle=False)
    assert torch.equal(next(feed.stream(0, 1)).batch["x"], torch.arange(5).bfloat16())


def test_tables_with_gaps_texts_and_lists(tmp_path: Path) -> None:
    held = pa.table(
        {
            "float": pa.array([1.5, None, 2.5], pa.float32()),
            "whole": pa.array([1, None, 3]),
            "flag": [True, False, True],
            "text": ["a", None, "ب"],
            "list": [[1], [], [2, 3]],
            "word": pa.array(["u", "v", "u"]).dictionary_encode(),
            "time": pa.array([0, 1, 2], pa.timestamp("ms")),
            "wide": pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
        }
    )
    pa.parquet.write_table(held, tmp_path / "a.parquet", row_group_size=2)
    pa.feather.write_feather(held, tmp_path / "b.feather")
    for file in tmp_path.iterdir():
        found = whole(open_source(file))
        assert found["float"].dtype == np.float32
        assert np.isnan(found["float"][1])
        assert found["whole"] == [1, None, 3]
        assert found["flag"].tolist() == [True, False, True]
        assert found["text"] == ["a", None, "ب"]
        assert found["list"] == [[1], [], [2, 3]]
        assert found["word"] == ["u", "v", "u"]
        assert found["time"].tolist() == [0, 1, 2]
        assert found["wide"].tobytes() == b"abcdef"
        batch = next(BatchLoader(file, 3).stream(0, 1)).batch
        assert isinstance(batch["time"], torch.Tensor)


def test_a_null_that_a_file_told_nothing_of_is_an_error(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"n": [1, None]}), tmp_path / "a.parquet", write_statistics=False)
    with pytest.raises(Invalid, match=r"null in n in rows 0 to 1 of .*a\.parquet"):
        whole(open_source(tmp_path))


def test_tables_of_different_columns_are_refused(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    pa.parquet.write_table(pa.table({"m": [1]}), tmp_path / "b.parquet")
    with pytest.raises(Invalid, match=r"b\.parquet has other columns"):
        open_source(tmp_path)


@pytest.mark.parametrize("make", [list, iter])
def test_shards_keep_texts_bytes_and_ragged_arrays(make: Any, tmp_path: Path) -> None:
    rows = [
        {"n": i, "x": np.full((2, 2), i, np.float16), "s": "ب" * (i % 5), "b": bytes(i % 7), "r": np.arange(i % 3 + 1)}
        for i in range(3000)
    ]
    folder = write_shards(make(rows), tmp_path / "s", shard_bytes=20_000)
    verify_shards(folder)
    source = open_source(folder)
    assert len(source.counts) > 1
    ids = np.random.default_rng(0).permutation(3000)
    found = source.take(ids)
    assert found["n"].tolist() == ids.tolist()
    assert np.array_equal(found["x"], np.stack([rows[i]["x"] for i in ids]))
    assert found["s"] == [rows[i]["s"] for i in ids]
    assert found["b"] == [rows[i]["b"] for i in ids]
    assert all(np.array_equal(a, rows[i]["r"]) for a, i in zip(found["r"], ids, strict=True))


def test_any_source_can_be_turned_into_shards(tmp_path: Path) -> None:
    write_shards(open_source(put("jsonl", tmp_path / "j")), tmp_path / "s")
    found = whole(open_source(tmp_path / "s"))
    assert found["y"].tolist() == list(range(SIZE))
    with pytest.raises(Conflict):
        write_shards([], tmp_path / "s")


def test_a_flipped_byte_in_a_shard_is_found(tmp_path: Path) -> None:
    folder = put("shards", tmp_path / "s")
    victim = min(folder.glob("*.shard"))
    raw = bytearray(victim.read_bytes())
    raw[-70] ^= 1
    victim.write_bytes(raw)
    with pytest.raises(CorruptData, match=victim.name):
        verify_shards(folder)
    raw[30] ^= 1
    victim.write_bytes(raw)
    with pytest.raises(CorruptData, match=r"header of .*part-000000"):
        whole(open_source(folder))


def test_shards_that_were_not_written_to_their_end_are_refused(tmp_path: Path) -> None:
    folder = put("shards", tmp_path / "s")
    (folder / "shards.json").unlink()
    with pytest.raises(CorruptData, match="not written to its end"):
        open_source(folder)


def test_values_of_several_kinds_in_a_column_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="values of s"):
        write_shards([{"s": "a"}, {"s": 1}], tmp_path / "a")
    with pytest.raises(Invalid, match="same columns"):
        write_shards([{"s": "a"}, {"t": "b"}], tmp_path / "b")


def test_lines_tell_which_one_is_bad(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2\n{"m": 3}\n')
    source = open_source(tmp_path)
    with pytest.raises(CorruptData, match=r"sample 1 in .*a\.jsonl"):
        source.take(np.array([0, 1]))
    with pytest.raises(Invalid, match="sample 2 has no column n"):
        source.take(np.array([0, 2]))


def test_texts_in_folders_of_classes(tmp_path: Path) -> None:
    for label in ("good", "bad"):
        (tmp_path / label).mkdir()
        for number in range(3):
            (tmp_path / label / f"{number}.txt").write_text(f"{label} {number}")
    source = open_source(tmp_path)
    assert source.classes == ("bad", "good")
    found = whole(source)
    assert found["label"].tolist() == [0, 0, 0, 1, 1, 1]
    assert found["text"][3] == "good 0"
    (tmp_path / "loose.txt").write_text("x")
    with pytest.raises(Invalid, match=r"loose\.txt lies beside"):
        open_source(tmp_path)


def image(folder: Path, name: str, found: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(found)


def test_images_without_decoding_are_bytes(tmp_path: Path) -> None:
    image(tmp_path / "cat", "1.png", b"one")
    image(tmp_path / "dog", "2.JPG", b"three")
    found = whole(open_source(tmp_path, decode=False))
    assert [bytes(each) for each in found["image"]] == [b"one", b"three"]
    assert found["label"].tolist() == [0, 1]


def test_decoding_without_pillow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falaj.feed.file_samples.find_spec", lambda name: None)
    image(tmp_path / "cat", "1.png", b"one")
    with pytest.raises(Invalid, match="Pillow"):
        open_source(tmp_path, decode=True)


def test_images_are_decoded(tmp_path: Path) -> None:
    from PIL import Image

    raw = io.BytesIO()
    Image.new("L", (5, 4), 7).save(raw, "png")
    image(tmp_path / "cat", "1.png", raw.getvalue())
    image(tmp_path / "cat", "2.png", raw.getvalue())
    assert whole(open_source(tmp_path))["image"].shape == (2, 4, 5, 3)
    image(tmp_path / "cat", "3.png", b"torn")
    with pytest.raises(CorruptData, match=r"sample 2 in .*3\.png"):
        whole(open_source(tmp_path))


def test_archives_are_listed_once_and_missing_members_are_none(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, found in (("d/1.txt", b"one"), ("d/1.json", b'{"k": 1}'), ("e/1.txt", b"other")):
            member = tarfile.TarInfo(name)
            member.size = len(found)
            archive.addfile(member, io.BytesIO(found))
    assert whole(open_source(tmp_path)) == {"json": [{"k": 1}, None], "txt": ["one", "other"]}
    index = tmp_path / "a.tar.index"
    kept = json.loads(index.read_text())
    kept[2][0][1] += 1
    index.write_text(json.dumps(kept))
    assert whole(open_source(tmp_path))["txt"][0] == "ne\0", "the index is used"
    index.write_text("torn")
    assert whole(open_source(tmp_path))["txt"][0] == "one"


def test_streams_are_told_their_epoch_and_must_keep_their_word() -> None:
    dataset = Sized(10)
    assert [numbers(g.batch)[0] for g in BatchLoader(dataset, 5).stream(0, 4)] == [0, 5, 7, 2]
    assert dataset.epochs == [0, 1]

    class Short(Streamed):
        def __len__(self) -> int:
            return self.size + 1

    with pytest.raises(Invalid, match="ended after 10 samples and says it has 11"):
        list(BatchLoader(Short(10), 11).stream(0, 1))


def test_a_stream_has_one_reader() -> None:
    with pytest.raises(Invalid, match="workers"):
        next(BatchLoader(Streamed(), 5, workers=1).stream(0, 1))


def test_arrays_by_themselves_are_a_column() -> None:
    assert list(whole(open_source(np.arange(3)))) == ["data"]
    assert whole(open_source(columns()))["y"].tolist() == ALL.tolist()
