"""The outbox: whole lines whatever ends the writer, bounded whatever it says, and readers that believe nothing else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from falaj.core.errors import Invalid
from falaj.core.outbox import read_outbox
from falaj.worker import outbox as module
from falaj.worker.outbox import Outbox


def steps(facts: list[dict[str, object]]) -> list[object]:
    return [fact["step"] for fact in facts]


def test_facts_come_back_in_order_and_once(tmp_path: Path) -> None:
    first, second = Outbox(str(tmp_path), "rank-0"), Outbox(str(tmp_path), "rank-1")
    for step in range(3):
        first.tell("progress", step=step)
        second.tell("progress", step=10 + step)
    facts, cursor = read_outbox(tmp_path)
    assert steps(facts) == [0, 1, 2, 10, 11, 12]
    first.tell("progress", step=3)
    facts, cursor = read_outbox(tmp_path, cursor)
    assert steps(facts) == [3]
    assert read_outbox(tmp_path, cursor) == ([], cursor)
    assert steps(read_outbox(tmp_path, "", {"rank-1"}.__contains__)[0]) == [10, 11, 12]
    first.close()
    second.close()


def test_a_torn_line_is_nobodys_fact(tmp_path: Path) -> None:
    box = Outbox(str(tmp_path), "rank-0")
    box.tell("progress", step=1)
    box.close()
    with (tmp_path / "rank-0.jsonl").open("ab") as file:
        file.write(b'{"kind":"progress","st')
    facts, cursor = read_outbox(tmp_path)
    assert steps(facts) == [1]
    again = Outbox(str(tmp_path), "rank-0")
    again.tell("progress", step=2)
    again.close()
    assert steps(read_outbox(tmp_path, cursor)[0]) == [2]


def test_a_killed_writer_loses_nothing_it_said(tmp_path: Path) -> None:
    code = (
        "import sys; from falaj.worker.outbox import Outbox; box = Outbox(sys.argv[1], 'rank-0'); n = 0\n"
        "while True: box.tell('progress', step=n); n += 1; print(n, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(200)]
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().split()]
    found = steps(read_outbox(tmp_path)[0])
    assert found[: len(said)] == list(range(len(said)))


def test_it_is_bounded_and_readers_follow_into_the_next_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PART_BYTES", 200)
    monkeypatch.setattr(module, "MAX_PARTS", 3)
    box = Outbox(str(tmp_path), "rank-0")
    box.tell("progress", step=0)
    facts, cursor = read_outbox(tmp_path)
    for step in range(1, 8):
        box.tell("progress", step=step)
        more, cursor = read_outbox(tmp_path, cursor)
        facts += more
    assert steps(facts) == list(range(8))
    for step in range(8, 100):
        box.tell("progress", step=step)
    box.close()
    assert len(list(tmp_path.iterdir())) <= 4
    kept = steps(read_outbox(tmp_path, cursor)[0])
    assert kept == list(range(100 - len(kept), 100))


def test_what_is_no_fact_is_skipped(tmp_path: Path) -> None:
    lines = [b"\xff\xfe", b"[1]", b"null", b"[" * 200_000, b'{"kind":"note","step":5}', b""]
    (tmp_path / "rank-0.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "rank-1.jsonl").write_bytes(b"x" * (3 << 20) + b'\n{"kind":"note","step":6}\n')
    (tmp_path / "rank-2.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "rank-3.jsonl")
    (tmp_path / "rank-4.jsonl").mkdir()
    (tmp_path / "..jsonl").write_bytes(b'{"step":7}\n')
    found, cursor = read_outbox(tmp_path)
    for _ in range(4):
        more, cursor = read_outbox(tmp_path, cursor)
        found += more
    assert steps(found) == [5, 6]


def test_too_much_at_once_is_left_and_counted(tmp_path: Path) -> None:
    box = Outbox(str(tmp_path), "rank-0")
    box.tell("note", text="x" * 100_000)
    assert box.lost == 1
    elsewhere = Outbox("/proc/nowhere", "rank-0")
    elsewhere.tell("note", text="x")
    assert elsewhere.lost == 1
    box.close()


@pytest.mark.parametrize("cursor", ["x", "[]", '{"rank-0": 1}', '{"rank-0": ["a", 0]}', json.dumps({"a": [1, 2, 3]})])
def test_a_bad_cursor_is_refused(tmp_path: Path, cursor: str) -> None:
    with pytest.raises(Invalid):
        read_outbox(tmp_path, cursor)
