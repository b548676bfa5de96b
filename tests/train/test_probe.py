"""The stop-watch in a process: what it is asked, what memory is, and what counts as running out of it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from falaj.train import probe as probes
from falaj.train.probe import (
    HostMemoryMeter,
    ProbeRequest,
    ScriptMeasurement,
    ScriptProbe,
    is_out_of_memory_error,
    read_probe,
)

MIB = 1 << 20


def test_somebody_asks() -> None:
    found = read_probe({"FALAJ_PROBE": json.dumps({"steps": 7, "warm": 2, "out": "somewhere"})})
    assert found.order == ProbeRequest("somewhere", 7, 2)


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory, said a column"), False),
    ],
)
def test_what_running_out_of_memory_looks_like(error: Exception, memory: bool) -> None:
    assert is_out_of_memory_error(error) is memory


def test_peaks_are_of_the_time_since_they_were_forgotten() -> None:
    memory = HostMemoryMeter()
    memory.forget()
    before = memory.peak()
    held = np.ones(64 * MIB, np.uint8)
    assert memory.peak() - before > 60 * MIB
    del held
    memory.forget()
    assert memory.peak() - before < 30 * MIB


def test_steps_before_it_is_warm_do_not_count(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch()
    probe = ScriptProbe(ProbeRequest(str(out), steps=2, warm=1))
    probe.facts = {"batch": 10}
    waits = iter([0.25, 1.0, 0.25, 0.25])
    for number in range(3):  # the first to warm up, two that count, and then the one that ends the second of them
        probe.waited(next(waits))
        probe.stepped(number)
    probe.waited(next(waits))
    with pytest.raises(SystemExit) as ended:
        probe.stepped(3)
    assert ended.value.code == 0
    measured = ScriptMeasurement(**json.loads(out.read_bytes()))
    assert measured.phases["input"] == 0.25
    assert measured.units_s == pytest.approx(10 / measured.step_s)
    assert measured.good


def test_time_that_is_up_ends_it_after_a_few_steps(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch()
    probe = ScriptProbe(ProbeRequest(str(out), steps=1000, warm=0, seconds=0.0))
    probe.facts = {"batch": 10}
    for number in range(3):
        probe.stepped(number)
    with pytest.raises(SystemExit):
        probe.stepped(3)
    assert ScriptMeasurement(**json.loads(out.read_bytes())).good


def test_a_second_run_in_a_process_is_what_follows_a_lack_of_memory(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch()
    probe = ScriptProbe(ProbeRequest(str(out)))
    probe.facts = {"batch": 10, "micro": 5}
    from falaj.train.options import Options

    with pytest.raises(SystemExit):
        probe.began(Options(), torch.device("cpu"))
    assert ScriptMeasurement(**json.loads(out.read_bytes())).oom


@pytest.mark.parametrize(
    ("most", "used", "files"),
    [
        ("memory.max", "memory.current", "anon 5\ninactive_file 40\n"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "inactive_file 1\ntotal_inactive_file 40\n"),
    ],
)
def test_files_in_memory_give_way(tmp_path: Path, most: str, used: str, files: str) -> None:
    assert probes._read_cgroup_remaining(tmp_path) is None
    (tmp_path / used).write_text("900\n")
    (tmp_path / "memory.stat").write_text(files)
    for limit, left in (("max", None), (str((1 << 63) - 4096), None), ("1000", 140)):
        (tmp_path / most).write_text(limit + "\n")
        assert probes._read_cgroup_remaining(tmp_path) == left
