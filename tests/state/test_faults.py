"""Checkpoints that are broken in every way: never loaded, the one before is, and it is told."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData
from falaj.state.checkpoints import CheckpointStore, FoundCheckpoint
from falaj.state.manifest import parse_manifest
from tests.state.ranks import together
from tests.state.test_checkpoints import blank, same, state
from tests.state.test_memory import every, tell


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the steps 1 and 2."""
    folder = tmp_path_factory.mktemp("two")
    saves = CheckpointStore(folder)
    for step in (1, 2):
        saves.save(step, state(step), {"lr": 1e-05})
    saves.close()
    return folder


def restored(folder: Path) -> FoundCheckpoint:
    """What is found and loaded, after comparing it bit by bit with what was saved."""
    saves, filled = CheckpointStore(folder), blank(state())
    found = saves.restore(filled)
    saves.close()
    assert found is not None
    assert same(filled, state(found.step))
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_seen(
    two: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    shutil.copytree(two, folder, dirs_exist_ok=True)
    newest = folder / "step-2.json"
    pieces = [folder / "pieces" / name for name in sorted(parse_manifest(newest.read_bytes()).files)]
    victim = data.draw(st.sampled_from([newest, *pieces]))
    size = victim.stat().st_size
    at = data.draw(st.one_of(st.integers(0, size - 1), st.sampled_from([0, size - 1, size // 2])))
    bit = data.draw(st.integers(0, 7))
    with victim.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))
    verified = CheckpointStore(folder, rank=1, world=2, attempt="looks").newest()
    found = restored(folder)
    assert verified is not None
    assert verified.step == found.step
    if found.step == 1:
        assert found.passed_over[0].startswith("step 2: ")
        assert (folder / "step-2.json.bad").exists()
    else:  # the same JSON in other letters, as 1e-05 and 1E-05 are
        assert victim == newest
        assert json.loads(newest.read_text()) == json.loads((two / "step-2.json").read_text())
    shutil.rmtree(folder)


def _garbage(folder: Path) -> None:
    (folder / "step-2.json").write_bytes(b"\x00\xff{")


def _other_json(folder: Path) -> None:
    (folder / "step-2.json").write_text('{"format": 1, "digest": "", "tensors": []}')


def _torn(folder: Path) -> None:
    text = (folder / "step-2.json").read_bytes()
    (folder / "step-2.json").write_bytes(text[: len(text) // 2])


def _empty(folder: Path) -> None:
    (folder / "step-2.json").write_bytes(b"")


def _first_piece(folder: Path) -> Path:
    return folder / "pieces" / min(parse_manifest((folder / "step-2.json").read_bytes()).files)


def _deleted(folder: Path) -> None:
    _first_piece(folder).unlink()


def _truncated(folder: Path) -> None:
    with _first_piece(folder).open("r+b") as file:
        file.truncate(100)


def _longer(folder: Path) -> None:
    with _first_piece(folder).open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("broken", [_garbage, _other_json, _torn, _empty, _deleted, _truncated, _longer])
def test_the_one_before_is_used(two: Path, tmp_path: Path, broken: Callable[[Path], None]) -> None:
    shutil.copytree(two, tmp_path, dirs_exist_ok=True)
    broken(tmp_path)
    found = restored(tmp_path)
    assert found.step == 1
    assert len(found.passed_over) == 1
    assert (tmp_path / "step-2.json.bad").exists()
    assert restored(tmp_path).passed_over == ()


def test_a_newer_format_is_left_for_who_can_read_it(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path, dirs_exist_ok=True)
    body = json.loads((tmp_path / "step-2.json").read_text())
    (tmp_path / "step-2.json").write_text(json.dumps(body | {"format": 99}))
    found = restored(tmp_path)
    assert found.step == 1
    assert "format 99" in found.passed_over[0]
    saves = CheckpointStore(tmp_path, keep=1)
    for step in (3, 4):
        saves.save(step, state(step), {})
    saves.close()
    assert all((tmp_path / "pieces" / digest).exists() for digest in body["files"]), "its pieces were swept"


def test_nothing_is_touched_when_a_piece_is_broken(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path, dirs_exist_ok=True)
    saves, filled = CheckpointStore(tmp_path), blank(state())
    found = saves.newest(verify=False)
    assert found is not None
    with _first_piece(tmp_path).open("r+b") as file:
        file.write(b"garbage")
    assert not saves.check(found)
    with pytest.raises(CorruptData, match="not what was written"):
        saves.load(found, filled)
    saves.close()
    assert same(filled, blank(state()))


def test_what_one_rank_finds_broken_no_rank_loads(tmp_path: Path) -> None:
    """Rank 1 alone needs the broken piece; rank 0 chose the checkpoint without reading it."""

    def work(rank: int) -> None:
        saves = CheckpointStore(tmp_path / "kept", rank=rank, world=2, peers=(rank,))
        for step in (1, 2):
            saves.save(step, {f"w{rank}": torch.full((9,), 10.0 * rank + step)}, {})
            saves.settle()
        dist.barrier()
        if rank == 1:
            manifest = parse_manifest((tmp_path / "kept" / "step-2.json").read_bytes())
            (tmp_path / "kept" / "pieces" / manifest.tensors["w1"].pieces[0].file).write_bytes(bytes(64))
        dist.barrier()
        again, target = CheckpointStore(tmp_path / "kept", rank=rank, world=2, peers=(rank,)), torch.zeros(9)
        found = again.restore({f"w{rank}": target}, tell, every)
        assert found is not None
        assert (found.step, len(found.passed_over)) == (1, 1)
        assert target.unique().tolist() == [10.0 * rank + 1]

    together(2, work, tmp_path / "meet")


def test_pieces_that_are_the_same_are_one(tmp_path: Path) -> None:
    saves, tensors = CheckpointStore(tmp_path), {f"moment{n}": torch.zeros(2_000_000) for n in range(5)}
    saves.save(1, tensors, {})
    saves.settle()
    assert len(list((tmp_path / "pieces").iterdir())) == 1
    filled = {name: torch.ones_like(tensor) for name, tensor in tensors.items()}
    assert saves.restore(filled) is not None
    saves.close()
    assert not any(tensor.any() for tensor in filled.values())


def test_a_rotten_piece_is_written_again(two: Path, tmp_path: Path) -> None:
    """Those who did not read it do not rely on it."""
    shutil.copytree(two, tmp_path, dirs_exist_ok=True)
    with _first_piece(tmp_path).open("r+b") as file:
        file.write(b"garbage")
    saves = CheckpointStore(tmp_path)
    saves.save(3, state(2), {})
    saves.close()
    again, filled = CheckpointStore(tmp_path), blank(state())
    found = again.newest()
    again.close()
    assert found is not None
    assert found.step == 3
    assert torch.equal(filled["scalar"], torch.tensor(0.0))


def test_a_manifest_that_was_replaced_is_not_the_one_that_was_chosen(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path, dirs_exist_ok=True)
    saves = CheckpointStore(tmp_path)
    found = saves.newest()
    assert found is not None
    saves.save(2, state(3), {})
    saves.settle()
    assert not saves.check(found)
    saves.close()
