"""Cores and threads: of machines laid out in files, and of this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from falaj.train import cpus


def machine(root: Path, nodes: int, cores: int, threads: int) -> Path:
    """A machine as the kernel shows it: hyper-threads of a core are `nodes * cores` apart."""
    for cpu in range(nodes * cores * threads):
        first = cpu % (nodes * cores)
        folder = root / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        siblings = ",".join(str(first + nodes * cores * number) for number in range(threads))
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    for node in range(nodes):
        folder = root / f"node/node{node}"
        folder.mkdir(parents=True)
        spans = [(number * nodes + node) * cores for number in range(threads)]
        (folder / "cpulist").write_text(",".join(f"{begin}-{begin + cores - 1}" for begin in spans) + "\n")
    return root


def test_of_hyper_threads_one_of_each_core_is_taken(tmp_path: Path) -> None:
    found = cpus.arrange_cores(range(16), machine(tmp_path, nodes=2, cores=4, threads=2))
    assert found.physical == tuple(range(8))
    assert found.every == (0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15)


def test_a_mask_without_first_threads_has_as_many_cores(tmp_path: Path) -> None:
    assert cpus.arrange_cores({8, 9, 2, 10}, machine(tmp_path, nodes=2, cores=4, threads=2)).physical == (8, 9, 2)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_ranks_have_cores_of_their_own_and_leave_none(tmp_path: Path, world: int) -> None:
    every = cpus.arrange_cores(range(16), machine(tmp_path, nodes=2, cores=4, threads=2))
    parts = [cpus.split_cores(every, rank, world) for rank in range(world)]
    assert sorted(core for part in parts for core in part.every) == list(range(16))
    assert sorted(core for part in parts for core in part.physical) == list(range(8))
    if world % 2 == 0:  # nobody sits on two nodes
        assert all(len({core % 8 // 4 for core in part.every}) == 1 for part in parts)


def test_more_ranks_than_cores_share(tmp_path: Path) -> None:
    every = cpus.arrange_cores(range(2), machine(tmp_path, nodes=1, cores=2, threads=1))
    assert [len(cpus.split_cores(every, rank, 3).physical) for rank in range(3)] == [1, 1, 1]


def test_threads_stay_within_the_time_a_container_is_given(tmp_path: Path) -> None:
    every = cpus.arrange_cores(range(16), machine(tmp_path, nodes=2, cores=4, threads=2))
    assert [cpus.fair_thread_count(every, share) for share in (float("inf"), 100, 8, 2.5, 0.3)] == [8, 8, 8, 2, 1]


def test_the_strictest_group_above_counts(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/cpu.max").write_text("250000 100000\n")
    (tmp_path / "a/b/cpu.max").write_text("max 100000\n")
    assert cpus.read_cpu_quota(tmp_path, "0::/a/b\n") == 2.5
    assert cpus.read_cpu_quota(tmp_path, "0::/c\n") == float("inf")


def test_groups_of_the_older_kind_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "cpu,cpuacct/docker/x"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("150000\n")
    (folder / "cpu.cfs_period_us").write_text("50000\n")
    assert cpus.read_cpu_quota(tmp_path, "3:cpu,cpuacct:/docker/x\n2:memory:/\n") == 3.0
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpus.read_cpu_quota(tmp_path, "3:cpu,cpuacct:/docker/x\n") == float("inf")


@pytest.mark.parametrize(("said", "meant"), [("", 0), ("4", 4), ("4,2", 4), ("many", 0)])
def test_what_openmp_was_told_stands(said: str, meant: int) -> None:
    assert cpus.requested_threads({"OMP_NUM_THREADS": said}) == meant


def test_sixteen_bit_floats_are_seen() -> None:
    assert cpus.has_bf16("flags : fpu avx2 avx512_bf16 amx_tile")
    assert not cpus.has_bf16("flags : fpu avx2 avx512f")


def test_choices_hold_one_and_all() -> None:
    found = cpus.thread_choices()
    assert found[0] == 1
    assert found == tuple(sorted(set(found)))


APPLIED = """
import ctypes, os, sys, threading, torch
from falaj.train import cpus
from falaj.train.options import Options
parked = threading.Event()
threading.Thread(target=parked.wait, daemon=True).start()
if "OWN" in os.environ:
    torch.set_num_threads(int(os.environ["OWN"]))
done = cpus.apply_threads(Options(threads=int(sys.argv[3])), int(sys.argv[1]), int(sys.argv[2]))
masks = {tuple(sorted(os.sched_getaffinity(int(one)))) for one in os.listdir("/proc/self/task")}
parked.set()
library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
chooses = library.mkl_serv_get_dynamic() if hasattr(library, "mkl_serv_get_dynamic") else -1
print(torch.get_num_threads(), done.threads, ",".join(map(str, done.cores)), len(masks), chooses)
"""


def applied(rank: int, world: int, threads: int = 0, **env: str) -> list[str]:
    clean = {
        key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", *cpus._BINDING_VARIABLES)
    }
    command = [sys.executable, "-c", APPLIED, str(rank), str(world), str(threads)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, env=clean | env, timeout=100)
    return result.stdout.strip("\n").split(" ")


def test_ranks_of_this_machine_keep_to_their_cores() -> None:
    mine = len(cpus.read_cores().physical)
    if mine < 2:
        pytest.skip("one core")
    first, second = applied(0, 2), applied(1, 2)
    assert (
        first[:2]
        == [str(cpus.fair_thread_count(cpus.split_cores(cpus.read_cores(), 0, 2), cpus.read_cpu_quota() / 2))] * 2
    )
    assert not set(first[2].split(",")) & set(second[2].split(","))
    assert first[3] == second[3] == "1"  # the threads that were there already moved along


def test_who_was_given_cores_or_threads_keeps_them() -> None:
    assert applied(0, 2, SLURM_CPU_BIND="quiet")[2] == ""
    assert applied(0, 1, OMP_NUM_THREADS="1")[:2] == ["1", "1"]
    assert applied(0, 1, threads=3, OMP_NUM_THREADS="1")[:2] == ["3", "3"]
    assert applied(0, 1, OWN="7")[:2] == ["7", "7"]


def test_a_number_that_is_torch_s_own_leaves_small_products_to_mkl() -> None:
    """Whoever sets one, though it be the same, has products spread over all threads that are too small for it."""
    known = cpus.read_cores()
    if cpus.fair_thread_count(known, cpus.read_cpu_quota()) != len(known.every):
        pytest.skip("torch takes more threads here than it is given")
    free, held = applied(0, 1)[4], applied(0, 1, threads=len(known.every) + 1)[4]
    if held == "-1":
        pytest.skip("this torch has no MKL")
    assert (free, held) == ("1", "0")
