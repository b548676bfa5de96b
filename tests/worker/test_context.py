"""The document and what comes of it: contexts, rendezvous, and what a process sees of its attempt."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Invalid
from falaj.core.executor import EXIT_TRY_AGAIN, EXIT_YIELDED, Attempt, Slot
from falaj.worker import launcher, outbox_carrier, rendezvous
from falaj.worker.attempt_context import AttemptContext, build_document, parse_context
from falaj.worker.outbox import Outbox
from falaj.worker.outbox_carrier import OutboxCarrier
from tests.servers.process import wait_until


def context(framework: str, *processes: int, **more: Any) -> AttemptContext:
    slots = tuple(Slot(at, f"n{at}", processes=num, amounts={"cpu": 4000}) for at, num in enumerate(processes))
    attempt = Attempt("a-1", "job:p/n", "t", "p", slots, ("python", "train.py"), framework, folder="/f")
    return parse_context(
        json.loads(json.dumps(build_document(attempt, **({"rendezvous": {"host": "n0", "port": 29500}} | more))))
    )


def test_a_document_is_understood_and_strangers_in_it_left_alone() -> None:
    made = context("plain", 1, 2, stage=[["a", "b"]], run="run:p/1", new_in_a_later_version=1)
    assert (made.world, made.first_rank(1), made.stage, made.run) == (3, 1, (("a", "b"),), "run:p/1")
    with pytest.raises(Invalid, match="cobol"):
        context("cobol", 1)


def test_the_launcher_speaks_the_codes_of_the_port() -> None:
    assert (launcher.EXIT_TRY_AGAIN, launcher._EXIT_YIELDED) == (EXIT_TRY_AGAIN, EXIT_YIELDED)


def test_torch_finds_what_its_own_launcher_would_have_set() -> None:
    env = rendezvous.make_rank_environment(context("torch", 2, 2), 1, 1, {})
    names = "MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK OMP_NUM_THREADS"
    assert [env[name] for name in names.split()] == ["n0", "29500", "3", "4", "1", "2", "1", "2"]


def test_tensorflow_finds_its_cluster() -> None:
    found = json.loads(rendezvous.make_rank_environment(context("tensorflow", 1, 2), 1, 1, {})["TF_CONFIG"])
    assert found == {
        "cluster": {"worker": ["n0:29500", "n1:29501", "n1:29502"]},
        "task": {"type": "worker", "index": 2},
    }


def test_jax_finds_its_coordinator_where_the_executor_says() -> None:
    env = rendezvous.make_rank_environment(context("jax", 1, 1, rendezvous={"port": 7}), 1, 0, {"FALAJ_HOST": "head"})
    assert [env[f"JAX_{name}"] for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")] == [
        "head:7",
        "2",
        "1",
    ]


def test_mpi_is_started_once_for_all_or_by_the_cluster() -> None:
    here = {"rendezvous": {"host": "127.0.0.1", "port": 1}}
    made = context("mpi", 2, 2, **here)
    assert rendezvous.get_slot_command(made, 0, {}) == ("mpirun", "-n", "4", "python", "train.py")
    assert rendezvous.get_slot_command(made, 1, {}) == ()
    assert [rendezvous.count_slot_processes(made, slot, {}) for slot in (0, 1)] == [1, 0]
    assert rendezvous.get_slot_command(context("mpi", 1, 1), 1, {"PMIX_RANK": "1"}) == ("python", "train.py")
    with pytest.raises(Invalid, match="several nodes"):
        rendezvous.get_slot_command(context("mpi", 1, 1), 0, {})


@pytest.mark.parametrize(
    ("framework", "given", "seen"),
    [
        ("torch", None, ["4,5", "4,5"]),
        ("jax", None, ["4", "5"]),
        ("jax", "GPU-a,GPU-b", ["GPU-a", "GPU-b"]),
        ("plain", "", ["", ""]),
    ],
)
def test_devices_are_shared_as_the_framework_expects(framework: str, given: str | None, seen: list[str]) -> None:
    made = context(framework, 2)
    made = made._replace(slots=(made.slots[0]._replace(devices=(4, 5)),))
    env = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    assert [rendezvous.make_rank_environment(made, 0, local, env)["CUDA_VISIBLE_DEVICES"] for local in (0, 1)] == seen


def test_outside_any_attempt_nobody_is_told(tmp_path: Path) -> None:
    code = (
        "from falaj import worker; here = worker.attempt(); here.progress(1, 2)\n"
        "here.checkpointed(1); here.metric('a', 1); print(here.asked(), here.rank, here.world, here.inputs)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == " 0 1 {}\n"
    assert list(tmp_path.iterdir()) == []


def test_inside_one_it_is_told_and_asked(tmp_path: Path) -> None:
    code = """if True:
        import time
        from falaj import worker
        here = worker.attempt()
        print(repr(here.asked()), flush=True)
        while not here.asked(): time.sleep(0.02)  # a pause could miss it
        print(here.asked(), flush=True)
        here.checkpointed(5, "/c/5", save_s=0.5)
        while here.asked() != "stop": time.sleep(0.02)
        here.yield_place()
    """
    env = os.environ | {"FALAJ_ATTEMPT": "a", "FALAJ_RANK": "3", "FALAJ_OUTBOX": str(tmp_path), "FALAJ_WORLD": "4"}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "''\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "save\n"
        wait_until((tmp_path / "rank-3.jsonl").exists, 20)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == EXIT_YIELDED
    (fact,) = [json.loads(line) for line in (tmp_path / "rank-3.jsonl").read_text().splitlines()]
    assert fact | {"at": 0} == {"kind": "checkpoint", "at": 0, "rank": 3, "step": 5, "path": "/c/5", "save_s": 0.5}


def test_the_data_plane_loads_the_standard_library_and_core_only() -> None:
    code = (
        "import sys; import falaj.worker, falaj.worker.fork_server, "
        "falaj.worker.outbox_carrier, falaj.worker.launcher_archive\n"
        "print(*sorted(n for n in sys.modules if n.partition('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if not name.startswith("__")}
    rooms = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("falaj")}
    assert rooms == {"falaj", "falaj.core", "falaj.worker"}
    assert {name for name in loaded if not name.startswith(("falaj", "_"))} == set()


class Platform(BaseHTTPRequestHandler):
    """The platform's door for facts; out of order for the first call."""

    heard: list[tuple[str, dict[str, Any]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.heard.append((f"{self.path} {self.headers['Authorization']}", body))
        self.send_response(503 if len(self.heard) == 1 else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def platform() -> Iterator[HTTPServer]:
    Platform.heard = []
    with HTTPServer(("127.0.0.1", 0), Platform) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_facts_are_carried_to_the_platform_until_it_takes_them(
    tmp_path: Path, platform: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_carrier, "_SEND_INTERVAL_S", 0.1)
    (tmp_path / "token").write_text("t0ken\n")
    where = {"address": f"http://127.0.0.1:{platform.server_port}/", "token_file": str(tmp_path / "token")}
    box, foreign = Outbox(str(tmp_path), "rank-1"), Outbox(str(tmp_path), "rank-0")
    foreign.tell("progress", step=99)
    box.tell("progress", step=1)
    carrier = OutboxCarrier(context("plain", 1, 1, **where), 1, tmp_path)
    wait_until(lambda: len(Platform.heard) >= 2, 30)
    box.tell("progress", step=2)
    carrier.finish()
    doors, bodies = zip(*Platform.heard, strict=True)
    assert set(doors) == {"/v1/jobs/tell Bearer t0ken"}
    assert {(body["attempt"], body["slot"]) for body in bodies} == {("a-1", 1)}
    assert [fact["step"] for body in bodies[1:] for fact in body["facts"]] == [1, 2]
    for one in (box, foreign):
        one.close()
