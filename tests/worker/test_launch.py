"""The launcher, as a real process with real children: what it starts, hears, ends and leaves behind."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from falaj.worker import fork_server, launcher, launcher_archive
from falaj.worker.launcher_archive import get_launcher_archive
from tests.servers.process import wait_until
from tests.worker.slot import NURSERY, SlotUnderTest, framed, gone

FOREVER = "while :; do sleep 0.05; done"


def test_output_is_kept_in_order_and_by_rank(tmp_path: Path) -> None:
    slot = SlotUnderTest(tmp_path, "sh", "-c", "echo 1; echo 2 >&2; echo 3; echo rank $FALAJ_RANK", processes=2)
    assert slot.end() | {"started": 0, "ended": 0} == {"code": 0, "started": 0, "ended": 0, "reason": ""}
    assert slot.log() == "1\n2\n3\nrank 0\n"
    assert slot.log("slot-0.rank-1.log") == "1\n2\n3\nrank 1\n"
    assert not (tmp_path / "outbox").exists(), "what its files tell it need not say"


def test_a_process_finds_what_it_needs(tmp_path: Path) -> None:
    keep = str(tmp_path / "kept" / "keep")
    named = {"inputs": {"my-data": "/in"}, "outputs": {"model": "/out"}, "checkpoints": keep, "env": {"LR": "0.1"}}
    code = (tmp_path / "code").absolute()
    code.mkdir()
    slot = SlotUnderTest(tmp_path, "sh", "-c", "env; pwd", code=str(code), run="run:p/1", **named)
    slot.end()
    seen = dict(line.split("=", 1) for line in slot.log().splitlines() if "=" in line)
    wanted = {
        "FALAJ_JOB": "job:p/n",
        "FALAJ_RUN": "run:p/1",
        "FALAJ_ATTEMPT": "a-1",
        "FALAJ_SLOT": "0",
        "FALAJ_RANK": "0",
        "FALAJ_WORLD": "1",
        "FALAJ_LOCAL_RANK": "0",
        "FALAJ_INPUT_MY_DATA": "/in",
        "FALAJ_OUTPUT_MODEL": "/out",
        "FALAJ_CHECKPOINTS": keep,
        "FALAJ_OUTBOX": str(tmp_path / "outbox"),
        "FALAJ_CONTEXT_FILE": str(tmp_path / "context.json"),
        "LR": "0.1",
    }
    assert {name: seen.get(name) for name in wanted} == wanted
    assert slot.log().splitlines()[-1] == str(code)


@pytest.mark.parametrize(("left", "slots"), [("", 1), ("a", 1), ("", 2)])
def test_folders_that_nobody_made_are_made_and_empty_ones_go(tmp_path: Path, left: str, slots: int) -> None:
    code, kept = tmp_path / "code", tmp_path / "all" / "kept"
    both = [{"index": index, "node": "n", "processes": 1} for index in range(slots)]
    words = f"pwd; ls -d $FALAJ_CHECKPOINTS; touch {left}" if left else "pwd; ls -d $FALAJ_CHECKPOINTS"
    slot = SlotUnderTest(tmp_path, "sh", "-c", words, code=str(code), checkpoints=str(kept), slots=both)
    assert slot.end()["code"] == 0
    assert slot.log().splitlines() == [str(code), str(kept)]
    assert code.exists() == (bool(left) or slots > 1), "another slot may still work there"
    assert kept.is_dir()


def test_a_killed_rank_ends_the_slot(tmp_path: Path) -> None:
    slot = SlotUnderTest(tmp_path, "sh", "-c", f"echo pid $$; {FOREVER}", processes=2)
    slot.says("pid")
    slot.says("pid", "slot-0.rank-1.log")
    first, other = (int(slot.log(name).split()[1]) for name in ("slot-0.log", "slot-0.rank-1.log"))
    os.kill(other, signal.SIGKILL)
    how = slot.end()
    assert (how["code"], how["reason"]) == (137, "rank 1 (sh) was ended by SIGKILL")
    gone(first, other)


def test_a_killed_launcher_takes_its_processes_along(tmp_path: Path) -> None:
    slot = SlotUnderTest(tmp_path, "sh", "-c", f"echo pid $$; {FOREVER}", processes=2)
    slot.says("pid")
    slot.says("pid", "slot-0.rank-1.log")
    slot.kill()
    gone(*(int(slot.log(name).split()[1]) for name in ("slot-0.log", "slot-0.rank-1.log")))
    assert not (tmp_path / "slot-0.exit").exists()


def test_a_stopped_process_has_its_grace(tmp_path: Path) -> None:
    slot = SlotUnderTest(
        tmp_path, "sh", "-c", f"trap 'echo saving; sleep 0.2; echo saved; exit 0' TERM; echo up; {FOREVER}"
    )
    slot.says("up")
    slot.signal(signal.SIGTERM)
    how = slot.end()
    assert (how["code"], how["reason"], slot.log()) == (0, "stopped", "up\nsaving\nsaved\n")


def test_one_that_yields_speaks_for_those_that_died(tmp_path: Path) -> None:
    script = f"test $FALAJ_RANK = 1 && trap 'sleep 0.2; exit 85' TERM; echo up; {FOREVER}"
    slot = SlotUnderTest(tmp_path, "sh", "-c", script, processes=2)
    slot.says("up")
    slot.says("up", "slot-0.rank-1.log")
    slot.signal(signal.SIGTERM)
    assert slot.end()["code"] == 85


def test_the_helpers_of_a_saving_process_are_left_alone(tmp_path: Path) -> None:
    """A trainer told to stop still reads from its own workers while it saves."""
    code = """if True:
        import signal, subprocess, sys
        child = subprocess.Popen(["sh", "-c", "sleep 0.5; echo from the child"], stdout=subprocess.PIPE)
        def stop(*_):
            print(child.stdout.read().decode(), end="", flush=True)
            sys.exit(85)
        signal.signal(signal.SIGTERM, stop)
        print("up", flush=True)
        signal.pause()
    """
    slot = SlotUnderTest(tmp_path, sys.executable, "-c", code)
    slot.says("up")
    slot.signal(signal.SIGTERM)
    assert slot.end()["code"] == 85
    assert slot.log() == "up\nfrom the child\n"


def test_whoever_forks_away_is_ended_too(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, time
        for _ in range(2):
            if os.fork():
                os._exit(0)
            os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("away", os.getpid(), flush=True)
        time.sleep(600)
    """
    script = f"{sys.executable} -c '{code}'; while ! grep -q away slot-0.log; do sleep 0.05; done"
    slot = SlotUnderTest(tmp_path, "sh", "-c", script)
    assert slot.end()["code"] == 0
    gone(int(slot.log().split()[1]))


def test_usr1_reaches_the_one_that_listens_and_not_what_it_forked(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, time
        heard = []
        signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
        signal.signal(signal.SIGUSR2, lambda *_: print("child heard", len(heard), flush=True))
        child = os.fork()
        print("up", flush=True)
        while not child or not heard: time.sleep(0.02)  # a pause could miss it
        os.kill(child, signal.SIGUSR2)
        while True: time.sleep(1)
    """
    slot = SlotUnderTest(tmp_path, "sh", "-c", f"{sys.executable} -c '{code}'; true")
    wait_until(lambda: slot.log().count("up") == 2, 20)
    slot.signal(signal.SIGUSR1)
    slot.says("child heard 0")
    slot.signal(signal.SIGTERM)
    slot.end()


def test_a_failed_staging_command_is_the_end(tmp_path: Path) -> None:
    stage = [
        ["-c", f"import sys; print('{word}', file=sys.stderr); print('more'); sys.exit({code})"]
        for word, code in (("first", 0), ("second", 4))
    ]
    slot = SlotUnderTest(tmp_path, "echo", "work", stage=stage, after=[["-c", "print('published')"]])
    how = slot.end()
    # The job's log has what it complains of, and nothing else that it says.
    assert (how["code"], how["reason"], slot.log()) == (4, "staging ended with code 4", "first\nsecond\n")


def test_a_platform_that_is_away_while_staging_is_not_the_jobs_fault(tmp_path: Path) -> None:
    slot = SlotUnderTest(tmp_path, "echo", "work", stage=[["-c", "raise SystemExit(8)"]])
    assert slot.end()["code"] == 75


@pytest.mark.parametrize(("code", "written"), [(0, "work\npublished\n"), (1, "work\n")])
def test_outputs_are_published_after_success_only(tmp_path: Path, code: int, written: str) -> None:
    after = [["-c", "import sys; print('published', file=sys.stderr)"]]
    slot = SlotUnderTest(tmp_path, "sh", "-c", f"echo work; exit {code}", after=after)
    assert slot.end()["code"] == code
    assert slot.log() == written


def test_the_time_limit_ends_it_however_it_ends(tmp_path: Path) -> None:
    slot = SlotUnderTest(tmp_path, "sh", "-c", f"trap 'exit 85' TERM; {FOREVER}", limit_s=0.3)
    how = slot.end()
    assert (how["code"], how["reason"]) == (143, "time limit of 0.3 s")


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [("no-such-program", 127, "command not found"), ("./plain.txt", 126, "not executable")],
)
def test_what_cannot_start_is_said_in_words(tmp_path: Path, command: str, code: int, reason: str) -> None:
    (tmp_path / "plain.txt").write_text("hello")
    slot = SlotUnderTest(tmp_path, command)
    how = slot.end()
    assert (how["code"], how["reason"]) == (code, f"rank 0 ({command}): {reason}")
    assert f"cannot start {command}" in slot.log()


def test_a_second_launcher_goes_away(tmp_path: Path) -> None:
    slot = SlotUnderTest(tmp_path, "sh", "-c", f"echo up; trap 'exit 0' TERM; {FOREVER}")
    slot.says("up")
    for _ in range(2):
        second = slot.launch()
        assert (second.communicate(timeout=20)[0], second.returncode) == (b"", 0)
    slot.signal(signal.SIGTERM)
    slot.end()
    third = slot.launch()
    assert (third.communicate(timeout=20)[0], third.returncode) == (b"", 0)
    assert slot.log() == "up\n"


def test_what_was_stopped_before_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "stop").write_text('{"grace_s": 1}')
    slot = SlotUnderTest(tmp_path, "echo", "work")
    how = slot.end()
    assert (how["code"], how["reason"], slot.log()) == (143, "stopped before it began", "")


def test_a_taken_port_is_tried_again_elsewhere(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        rendezvous = {"host": "127.0.0.1", "port": other.getsockname()[1]}
        slot = SlotUnderTest(tmp_path, "echo", "work", framework="torch", processes=2, rendezvous=rendezvous)
        assert slot.end()["code"] == 75


def test_without_a_folder_the_document_comes_by_environment_and_output_goes_to_ours(tmp_path: Path) -> None:
    document = '{"attempt": "a-2", "command": ["sh", "-c", "echo hello; exit 3"], "slots": [{"index": 0}]}'
    env = os.environ | {"FALAJ_CONTEXT": document, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "falaj.worker", "-", "0"], env=env, capture_output=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"hello\n", b"", 3)


def test_the_bundle_needs_python_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "falaj-worker.pyz").write_bytes(get_launcher_archive())
    code = "from falaj import worker; worker.attempt().metric('loss', float('nan'), 7); print(worker.__file__)"
    document = f'{{"attempt": "a-3", "command": ["{sys.executable}", "-S", "-c", "{code}"], "slots": [{{"index": 0}}]}}'
    env = {"FALAJ_CONTEXT": document, "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-I", "-S", str(tmp_path / "falaj-worker.pyz"), "-", "0"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "falaj-worker.pyz" in done.stdout
    (written,) = tmp_path.glob("falaj-*/outbox/rank-0.jsonl")
    assert '"value":"nan"' in written.read_text()


def test_staging_on_a_node_without_falaj_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "falaj-worker.pyz").write_bytes(get_launcher_archive())
    env = {"PYTHONPATH": str(tmp_path / "falaj-worker.pyz")}
    words = [sys.executable, "-S", "-m", "falaj", "catalog", "fetch"]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip().endswith("pip install falaj")) == (1, True), done.stderr


def test_telemetry_counts_the_whole_family(tmp_path: Path) -> None:
    burn = f"{sys.executable} -c 'while True: pass' & wait"
    slot = SlotUnderTest(tmp_path, "sh", "-c", burn, telemetry_s=0.1)
    wait_until(lambda: any(fact["cpu_s"] > 0.1 for fact in slot.facts("telemetry")), 20)
    last = slot.facts("telemetry")[-1]
    assert last["processes"] == 2
    assert last["rss"] > 1_000_000
    assert last["available"] > 0
    slot.signal(signal.SIGTERM)
    assert slot.end()["code"] == 143


def test_a_bad_context_is_refused_in_one_line(tmp_path: Path) -> None:
    for text in ("", "[]", '{"command": []}', '{"attempt": "a", "command": ["x"], "slots": [{"index": 4}]}'):
        (tmp_path / "context.json").write_text(text)
        words = [sys.executable, "-m", "falaj.worker", str(tmp_path / "context.json"), "0"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "Traceback" not in done.stderr


def test_a_launcher_goes_on_when_whoever_asked_for_it_is_gone(tmp_path: Path) -> None:
    document = {"attempt": "a-4", "command": ["echo", "work"], "slots": [{"index": 0}], "folder": str(tmp_path)}
    (tmp_path / "context.json").write_text(json.dumps(document))
    request = {
        "context": str(tmp_path / "context.json"),
        "slot": 0,
        "log": str(tmp_path / "log"),
        "env": dict(os.environ),
    }
    with subprocess.Popen(NURSERY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdout.close()
        nursery.stdin.write(framed(request))
        nursery.stdin.close()
    wait_until((tmp_path / "slot-0.exit").exists, 20)
    assert (tmp_path / "slot-0.log").read_text() == "work\n"


def test_the_first_launcher_lays_down_what_it_was_given(tmp_path: Path) -> None:
    folder = tmp_path / "a-5"
    given = {"attempt": "a-5", "command": ["echo", "work"], "slots": [{"index": 0}], "folder": str(folder)}
    _begin(folder, given)
    wait_until((folder / "slot-0.exit").exists, 20)
    assert json.loads((folder / "context.json").read_bytes()) == given
    assert (folder / "slot-0.log").read_text() == "work\n"
    assert not list(folder.glob("context.json.*"))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_of_two_who_lay_it_down_the_first_counts(tmp_path: Path) -> None:
    given = {"attempt": "a-6", "command": ["echo", "first"], "slots": [{"index": 0}], "folder": str(tmp_path)}
    (tmp_path / "context.json").write_text(json.dumps(given))
    _begin(tmp_path, given | {"command": ["echo", "second"]})
    wait_until((tmp_path / "slot-0.exit").exists, 20)
    assert (tmp_path / "slot-0.log").read_text() == "first\n"
    assert not list(tmp_path.glob("context.json.*"))


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    assert "No such file" in _begin(tmp_path / "gone" / "a-7", {"attempt": "a-7", "command": ["true"], "slots": []})


def _begin(folder: Path, document: Mapping[str, object]) -> str:
    """What a nursery answers that is asked for the first slot of an attempt."""
    request = {"context": f"{folder}/context.json", "slot": 0, "log": f"{folder}/log", "env": dict(os.environ)}
    with subprocess.Popen(NURSERY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(framed(request | {"document": dict(document)}))
        nursery.stdin.flush()
        answer = nursery.stdout.readline().decode()
        nursery.stdin.close()
    return answer


def test_the_bundle_is_made_once_for_all_who_ask_together() -> None:
    launcher_archive._build_archive.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: get_launcher_archive(), range(4)))
    assert len(set(made)) == 1
    assert launcher_archive._build_archive.cache_info().misses == 1


def test_the_bundle_has_every_room_that_its_rooms_need() -> None:
    with zipfile.ZipFile(io.BytesIO(get_launcher_archive())) as archive:
        sources = {name: archive.read(name).decode() for name in archive.namelist() if name.startswith("falaj/")}
    rooms = {name.split("/")[1] for name in sources}
    needed = {room for text in sources.values() for room in re.findall(r"^\s*from falaj\.([a-z]+)", text, re.MULTILINE)}
    assert needed - {"server"} <= rooms, "falaj/__init__.py names the platform, and loads it when asked"


def test_a_rehearsal_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = fork_server._SAMPLE_DOCUMENT.replace('"/', f'"{tmp_path}/')
    before = dict(os.environ)
    for name in ("mkdir", "fork", "write", "rename", "replace"):
        monkeypatch.setattr(os, name, lambda *_, name=name: pytest.fail(f"it would {name}"))
    launcher.warm_up_launcher(sample)
    assert (dict(os.environ), list(tmp_path.iterdir())) == (before, [])
