"""Snapshots in the memory of nodes: processes stand for nodes, each with a folder of its own."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from falaj.state.checkpoint_folder import list_names
from falaj.state.checkpoints import CheckpointStore, FoundCheckpoint
from falaj.state.node_memory import NodeMemory, find_partner
from tests.state.ranks import end, fork, joined, together
from tests.state.test_boxes import full, tensors
from tests.state.test_checkpoints import blank, same, state
from tests.state.test_publishing import until_written


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [([0], [0]), ([0, 0], [0, 1]), ([0, 1], [1, 0]), ([0, 0, 1, 1], [2, 3, 0, 1]), ([0, 1, 1, 2], [1, 3, 3, 0])],
)
def test_a_copy_is_kept_on_another_node(nodes: list[int], wanted: list[int]) -> None:
    assert [find_partner(rank, nodes) for rank in range(len(nodes))] == wanted


def begin(folder: Path, rank: int, world: int, nodes: list[int]) -> CheckpointStore:
    saves = CheckpointStore(folder / "disk", rank=rank, world=world)
    saves.memory = NodeMemory(folder / f"node{nodes[rank]}", dist.new_group(backend="gloo"), nodes)
    return saves


def tell(found: FoundCheckpoint | None) -> FoundCheckpoint | None:
    said = [found]
    dist.broadcast_object_list(said)
    return said[0]


def every(fine: bool) -> bool:
    told = torch.tensor(int(fine))
    dist.all_reduce(told, dist.ReduceOp.MIN)
    return bool(told)


def filled(world: int, layout: str, step: int) -> dict[str, torch.Tensor]:
    made = tensors(world, layout)
    for name, tensor in made.items():
        with torch.no_grad():
            tensor.copy_(
                torch.distributed.tensor.distribute_tensor(full()[name], tensor.device_mesh, tensor.placements)
                if hasattr(tensor, "device_mesh")
                else full()[name]
            )
            if name != "table":
                tensor.mul_(step)
    return made


def saving(folder: Path, nodes: list[int], layout: str = "rows") -> Callable[[int], None]:
    """Step 1 goes to the disk, 2 and 3 to memory only; then all end, and close nothing."""

    def work(rank: int) -> None:
        world = len(nodes)
        saves = begin(folder, rank, world, nodes)
        for step in (1, 2, 3):
            saves.save(step, filled(world, layout, step), {"step": step}, durable=step == 1)
            saves.settle()
        assert saves.problems() == []
        assert len(list_names(folder / f"node{nodes[rank]}" / str(rank) / "parts")) == 1

    return work


def restoring(folder: Path, nodes: list[int], wanted: int, layout: str = "rows") -> Callable[[int], None]:
    def work(rank: int) -> None:
        world = len(nodes)
        saves, into = begin(folder, rank, world, nodes), tensors(world, layout)
        found = saves.restore(into, tell, every)
        assert found is not None
        assert (found.step, found.meta) == (wanted, {"step": wanted})
        right = filled(world, layout, wanted)
        assert all(torch.equal(_local(into[name]), _local(right[name])) for name in right)
        saves.save(4, into, {"step": 4}, durable=False)
        saves.settle()
        assert saves.problems() == []
        dist.barrier()
        saves.close(job_done=True)

    return work


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def test_a_lost_node_comes_back_from_its_partner(tmp_path: Path) -> None:
    together(3, saving(tmp_path, [0, 1, 2]), tmp_path / "meet")
    shutil.rmtree(tmp_path / "node1")
    together(3, restoring(tmp_path, [0, 1, 2], 3), tmp_path / "meet")
    assert not [node for node in ("node0", "node1", "node2") if (tmp_path / node).exists()], "it was not cleaned"


def test_another_world_with_other_nodes_goes_on(tmp_path: Path) -> None:
    together(3, saving(tmp_path, [0, 1, 2]), tmp_path / "meet")
    shutil.rmtree(tmp_path / "node2")
    together(2, restoring(tmp_path, [0, 1], 3, "columns"), tmp_path / "meet")


def test_replicas_send_what_changed_and_two_ranks_share_a_node(tmp_path: Path) -> None:
    together(4, saving(tmp_path, [0, 0, 1, 1], "plain"), tmp_path / "meet")
    shutil.rmtree(tmp_path / "node0")
    together(4, restoring(tmp_path, [0, 0, 1, 1], 3, "plain"), tmp_path / "meet")


def test_of_many_pieces_each_comes_back(tmp_path: Path) -> None:
    """Some are new and some are there from the save before."""

    def large(rank: int, step: int) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(rank)
        tensors = {f"{rank}.{n}": torch.randn(1_100_000 + n, generator=made) for n in range(4)}
        return tensors | {f"{rank}.{n}": tensors[f"{rank}.{n}"] * step for n in (1, 2)}

    def save(rank: int) -> None:
        saves = CheckpointStore(tmp_path / "disk", rank=rank, world=2, peers=(rank,))
        saves.memory = NodeMemory(tmp_path / f"node{rank}", dist.new_group(backend="gloo"), [0, 1])
        for step in (1, 2, 3):
            saves.save(step, large(rank, step), {}, durable=False)
        saves.settle()
        assert saves.problems() == []

    def load(rank: int) -> None:
        saves = CheckpointStore(tmp_path / "disk", rank=rank, world=2)
        saves.memory = NodeMemory(tmp_path / f"node{rank}", dist.new_group(backend="gloo"), [0, 1])
        wanted = large(0, 3) | large(1, 3)
        into = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
        found = saves.restore(into, tell, every)
        assert found is not None
        assert found.step == 3
        assert all(torch.equal(into[name], wanted[name]) for name in wanted)

    together(2, save, tmp_path / "meet")
    shutil.rmtree(tmp_path / "node0")
    together(2, load, tmp_path / "meet")


def test_the_disk_is_there_when_memory_is_not(tmp_path: Path) -> None:
    together(3, saving(tmp_path, [0, 1, 2]), tmp_path / "meet")
    for node in ("node1", "node2"):
        shutil.rmtree(tmp_path / node)
    together(3, restoring(tmp_path, [0, 1, 2], 1), tmp_path / "meet")


def test_memory_that_rotted_is_not_used(tmp_path: Path) -> None:
    together(2, saving(tmp_path, [0, 1]), tmp_path / "meet")
    for path in tmp_path.glob("node*/*/pieces/*"):
        with path.open("r+b") as file:
            file.write(b"garbage!")
    together(2, restoring(tmp_path, [0, 1], 1), tmp_path / "meet")


@pytest.mark.parametrize("seed", range(4))
def test_kill_at_any_byte_of_an_exchange(tmp_path: Path, seed: int) -> None:
    """Both are killed, and once a node's memory is lost, too; what is found is whole and right."""
    chance, step = random.Random(seed), -1
    for turn in range(3):
        nodes = [tmp_path / f"node{rank}" for rank in range(2)]

        def work(rank: int, first: int = step, turn: int = turn, nodes: list[Path] = nodes) -> None:
            saves = CheckpointStore(tmp_path / "disk", rank=rank, world=2)
            saves.memory = NodeMemory(nodes[rank], dist.new_group(backend="gloo"), [0, 1])
            into = blank(state())
            found = saves.restore(into, tell, every)
            # What was found but not yet sent to the partner is lost with its node.
            assert (found.step if found else -1) >= first or turn == 2
            assert found is None or same(into, state(found.step))
            (tmp_path / f"found{rank}").write_text(str(found.step if found else -1))
            for number in range(found.step + 1 if found else 0, 1000):
                saves.save(number, state(number), {}, durable=False)

        meet = tmp_path / f"meet{turn}"
        children = [fork(partial(joined, rank, 2, work, meet)) for rank in range(2)]
        until_written(children[0], chance.randrange(40_000_000))
        for child in children:
            os.kill(child, signal.SIGKILL)
        assert set(end(children)) == {-signal.SIGKILL}, "one found what it should not"
        if turn == 1:
            shutil.rmtree(chance.choice(nodes), ignore_errors=True)
        told = tmp_path / "found1"
        step = max(step, int(told.read_text() or -1)) if told.exists() else step


def test_who_loses_its_partner_is_told_and_goes_on(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        saves = begin(tmp_path, rank, 2, [0, 1])
        saves.save(1, {"w": torch.ones(9)}, {}, durable=False)
        saves.settle()
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        saves.save(2, {"w": torch.ones(9)}, {}, durable=False)
        saves.settle()
        assert "no longer kept in memory" in "".join(saves.problems())
        (tmp_path / "told").touch()

    with pytest.raises(AssertionError):
        together(2, work, tmp_path / "meet")
    assert (tmp_path / "told").exists()
