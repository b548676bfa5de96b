"""Doing it again, part by part: what the program is told, how it ends, what is said of what comes out."""

import json
import os
import select
import struct
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from falaj.catalog import reproduce
from falaj.catalog.records import ModelCard
from falaj.core.errors import Invalid, Unavailable, UserCodeFailed
from tests.content.test_formats import safetensors


def pair(tmp_path: Path, name: str, before: bytes, after: bytes) -> reproduce.FileComparison:
    for folder, data in (("before", before), ("after", after)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(data)
    [found] = reproduce.compare_folders(tmp_path / "before", tmp_path / "after")
    return found


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_the_program_is_told_where_and_with_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    card = ModelCard(
        params={"lr": "0.1", "max-depth": "6", "GLOBAL_SEED": "7", "OMP_NUM_THREADS": "1", "LD_PRELOAD": "x"}
    )
    told = reproduce.build_program_environment(card, {"training data": tmp_path}, tmp_path / "out")
    assert told["FALAJ_INPUT_TRAINING_DATA"] == str(tmp_path)
    assert told["FALAJ_OUTPUT"] == str(tmp_path / "out")
    assert (told["FALAJ_PARAM_LR"], told["FALAJ_PARAM_MAX_DEPTH"]) == ("0.1", "6")
    assert (told["PYTHONHASHSEED"], told["GLOBAL_SEED"], told["OMP_NUM_THREADS"]) == ("0", "7", "1")
    assert not {"FALAJ_TOKEN", "PYTHONPATH", "LD_PRELOAD"} & told.keys()
    assert (
        reproduce.build_program_environment(ModelCard(params={"PYTHONHASHSEED": "3"}), {}, tmp_path)["PYTHONHASHSEED"]
        == "3"
    )
    with pytest.raises(Invalid, match="name them apart"):
        reproduce.build_program_environment(ModelCard(), {"a b": tmp_path, "a-b": tmp_path}, tmp_path)


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reproduce.run_program([sys.executable, "-c", "print('fine')"], tmp_path, {}, log)
    assert log.read_text() == "fine\n"
    with pytest.raises(UserCodeFailed, match=r"ended with 3.*it said: \?\[2Jno such column"):
        reproduce.run_program(
            [sys.executable, "-c", "import sys; print('\\x1b[2Jno such column'); sys.exit(3)"], tmp_path, {}, log
        )
    with pytest.raises(UserCodeFailed, match="cannot be run"):
        reproduce.run_program(["./not-there"], tmp_path, {}, log)


def test_a_program_that_does_not_end_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = "import os,time\nif not os.fork(): open('child','w').write(str(os.getpid()))\ntime.sleep(600)"
    with pytest.raises(UserCodeFailed, match="more than 1 seconds"):
        reproduce.run_program([sys.executable, "-c", child], tmp_path, {}, tmp_path / "log", 1.0)
    pid = int((tmp_path / "child").read_text())
    with suppress(ProcessLookupError):
        watch = os.pidfd_open(pid)  # readable once the process has ended; the kernel may take a moment
        looking = select.poll()
        looking.register(watch, select.POLLIN)
        ended = looking.poll(20_000)
        os.close(watch)
        assert ended


def test_the_same_bytes_are_the_same(tmp_path: Path) -> None:
    assert pair(tmp_path, "w.bin", b"x" * 3_000_000, b"x" * 3_000_000) == reproduce.FileComparison("w.bin", True)


def test_weights_are_compared_tensor_by_tensor(tmp_path: Path) -> None:
    before = safetensors({
        "b": ("F32", [2], floats(1, 2)), "gone": ("F32", [1], floats(1)), "same": ("F32", [1], floats(9)),
        "shape": ("F32", [2], floats(1, 2)), "w": ("F32", [4], floats(1, 2, 3, 4)),
    })  # fmt: skip
    after = safetensors({
        "b": ("F32", [2], floats(1, float("nan"))), "new": ("F32", [1], floats(1)), "same": ("F32", [1], floats(9)),
        "shape": ("F32", [2, 1], floats(1, 2)), "w": ("F32", [4], floats(1, 2.5, 3, 3)),
    })  # fmt: skip
    said = pair(tmp_path, "m.safetensors", before, after).difference
    assert said.split("; ") == [
        "tensor 'b' F32[2]: 1 of 2 numbers differ, by at most 0 or by NaN",
        "tensor 'gone' is gone",
        "tensor 'new' is new",
        "tensor 'shape' was F32[2] and is F32[2, 1]",
        "tensor 'w' F32[4]: 2 of 4 numbers differ, by at most 1",
    ]


@pytest.mark.parametrize(
    ("dtype", "before", "after", "most"),
    [
        ("F64", struct.pack("<2d", 1, 2), struct.pack("<2d", 1, 2.25), "0.25"),
        ("F16", struct.pack("<2e", 1, 2), struct.pack("<2e", 1, 2.5), "0.5"),
        ("BF16", b"\x80\x3f\x80\x3f", b"\x80\x3f\x00\x40", "1"),
        ("I64", struct.pack("<2q", 1, 2), struct.pack("<2q", 1, -2), "4"),
        ("U8", b"\x01\x02", b"\x01\xff", "253"),
        ("BOOL", b"\0\0", b"\0\1", "1"),
        ("F8_E4M3", b"\x01\x02", b"\x01\x03", "1"),
    ],
)
def test_numbers_of_every_kind(tmp_path: Path, dtype: str, before: bytes, after: bytes, most: str) -> None:
    one, two = safetensors({"t": (dtype, [2], before)}), safetensors({"t": (dtype, [2], after)})
    assert (
        f"1 of 2 {'bytes' if 'E4M3' in dtype else 'numbers'} differ, by at most {most}"
        in pair(tmp_path, "m", one, two).difference
    )


def test_a_difference_far_inside_a_large_tensor_is_found(tmp_path: Path) -> None:
    values = bytearray(3 << 20)
    before = safetensors({"w": ("F32", [len(values) // 4], bytes(values))})
    values[(2 << 20) + 4 : (2 << 20) + 8] = floats(0.125)
    after = safetensors({"w": ("F32", [len(values) // 4], bytes(values))})
    assert "1 of 786432 numbers differ, by at most 0.125" in pair(tmp_path, "m", before, after).difference


def test_json_is_compared_key_by_key(tmp_path: Path) -> None:
    before = {"a": 1, "deep": {"list": [1, 2, 3], "x": None}, "gone": 0}
    after = {"a": 1, "deep": {"list": [1, 5, 3], "x": "y"}, "new": 0}
    said = pair(tmp_path, "c.json", json.dumps(before).encode(), json.dumps(after).encode()).difference
    assert said == "'deep.list[1]' was 2 and is 5; 'deep.x' was null and is \"y\"; 'gone' is gone; 'new' is new"
    many = pair(tmp_path, "c.json", json.dumps([0] * 100).encode(), json.dumps([1] * 100).encode()).difference
    assert many.endswith("and 80 more")


def test_what_cannot_be_read_is_told_by_its_bytes(tmp_path: Path) -> None:
    said = pair(tmp_path, "m.bin", b"\x80" * 2_000_000, b"\x80" * 1_500_000 + b"\x81").difference
    assert said == "2000000 bytes became 1500001, the first difference is at byte 1500000"
    assert "byte 0" in pair(tmp_path, "m.bin", b"", b"\x80").difference
    deep = b"[" * 100_000
    assert "byte 100000" in pair(tmp_path, "m.bin", deep + b"1", deep + b"2").difference


def test_files_that_came_and_went_and_links(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        (folder / "sub").mkdir(parents=True)
        (folder / "same").symlink_to("a")
    (before / "sub" / "old").touch()
    (before / ".falaj").mkdir()
    (before / ".falaj" / "notes").touch()
    (after / "fresh").touch()
    (after / os.fsdecode(b"bad\x80")).touch()
    (before / "link").symlink_to("a")
    (after / "link").symlink_to("b")
    found = {one.path: one.difference for one in reproduce.compare_folders(before, after)}
    assert found == {
        "bad\\x80": "it is new this time",
        "fresh": "it is new this time", "link": "'a' became 'b'", "same": "", "sub/old": "it was not made this time",
    }  # fmt: skip


def test_the_environment_is_compared_package_by_package() -> None:
    here = reproduce.list_installed_packages(Path(sys.executable), dict(os.environ))
    assert reproduce.compare_environments(here, here) == ()
    recorded = {**here, "python": "2.7.18", "left-pad": "1.0"}
    del recorded["pytest"]
    assert reproduce.compare_environments(recorded, here) == (
        f"python was 2.7.18 and is {here['python']}",
        "left-pad was 1.0 and is not installed",
        "1 packages are installed that were not",
    )
    assert reproduce.compare_environments({}, here) == (), "nothing was recorded"


def test_another_python_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"Python 2\.7\.18"):
        reproduce.create_exact_environment({"python": "2.7.18"}, tmp_path / "a")


@pytest.mark.slow
def test_a_package_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be made") as told:
        reproduce.create_exact_environment({"falaj-no-such-package": "1.0"}, tmp_path / "b")
    assert "falaj-no-such-package" in told.value.hint
