"""Runs the attempts of escapes.py in one sandbox that the product builds: `sandbox_runner METHOD PROFILE FOLDER RUN`.

METHOD is "namespaces" or "landlock" (this process then denies itself namespaces, so that the product finds none);
PROFILE is one of PROFILES; RUN is "quick", "full" or "control" (no sandbox: shows which attempts are real).
Prints a JSON object of outcomes by name: done, refused, or absent (the machine lacks the target, or it did not answer).
"""

import ctypes
import json
import os
import platform
import socket
import subprocess
import sys
import sysconfig
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.backends.process import ProcessExecutor
from falaj.worker.attempt_context import build_document
from falaj.worker.isolated_process import start_isolated
from falaj.worker.syscall_filter import CALL_NUMBERS, CallRule, install_filter
from tests.backends.attempts import attempt, over, slots
from tests.security.attacks.escapes import PRELUDE, Escape, find_missing_target, list_escapes

PROFILES = ("job", "replica", "feature-replica", "staging", "agent", "isolated")
HARNESS = r"""
import select
def evaluate(expression):
    try:
        return ["done", repr(eval(expression))[:120]]
    except BaseException as error:
        return ["refused", repr(error)[:120]]
def evaluate_apart(expression):
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        os.write(writer, json.dumps(evaluate(expression)).encode())
        os._exit(0)
    os.close(writer)
    text = b""
    while select.select([reader], [], [], 20)[0] and (part := os.read(reader, 4096)):
        text += part
    os.close(reader)
    try: os.kill(pid, 9)
    except OSError: pass
    status = os.waitpid(pid, 0)[1]
    return json.loads(text) if text else ["refused", f"ended with {status}"]
WORK = os.getcwd()
F.context = os.environ.get("FALAJ_CONTEXT_FILE") or F.attempt + "/context.json"
try: F.launcher = json.load(open(F.attempt + "/slot-0.pid"))["pid"]
except OSError: F.launcher = F.pid
def is_sandboxed():
    # Attempts run only where the sandbox stands: without rights, and unable to read the platform's secret.
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    if int(fields["CapEff"], 16) or fields["NoNewPrivs"].strip() != "1" or fields["Seccomp"].strip() != "2":
        return False
    try:
        with open(F.secret): return False
    except OSError:
        return True
if not CONTROL and not is_sandboxed():
    os.write(2, b"NOT SANDBOXED: no attempt was made\n")
    os._exit(1)
for name, expression in ATTEMPTS:
    outcome = (evaluate_apart if APART else evaluate)(expression)
    os.write(2, b"\nESCAPE " + json.dumps([name, *outcome]).encode() + b"\n")
"""


class Outside:
    """What attempts are after: secrets, sockets, shared memory and a process of the platform's user."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.attempts = self.home / "attempts"
        (self.attempts / "other").mkdir(parents=True)
        (self.home / "keys").mkdir()
        self.shared = [Path(f"/tmp/falaj-outside-{os.getpid()}"), Path(f"/dev/shm/falaj-outside-{os.getpid()}")]
        for path in (self.home / "keys" / "secret", self.attempts / "other" / "note", *self.shared):
            path.write_text("secret of the platform")
            path.chmod(0o600)
        env = os.environ | {"OUTSIDE_SECRET": "secret"}
        self.process = subprocess.Popen(["sleep", "1000"], env=env, start_new_session=True)
        self.tcp = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.datagrams = 0
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self.home / "socket"))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0falaj-outside-{os.getpid()}")
        for listener in (self.unix, self.abstract):
            listener.listen()
        for answer in (self._answer_datagrams, self._hand_out_descriptors):
            threading.Thread(target=answer, daemon=True).start()
        self.sysv = 0x46000000 + os.getpid()
        libc = ctypes.CDLL(None)
        self.segment = libc.shmget(self.sysv, 4096, 0o1600)
        libc.semget(self.sysv, 1, 0o1600)
        libc.msgget(self.sysv, 0o1600)

    def _answer_datagrams(self) -> None:
        while True:
            _, caller = self.udp.recvfrom(64)
            self.datagrams += 1
            self.udp.sendto(b"answer", caller)

    def _hand_out_descriptors(self) -> None:
        while True:
            with self.unix.accept()[0] as caller, Path(os.devnull).open() as file, suppress(OSError):
                socket.send_fds(caller, [b"."], [file.fileno()])
                caller.recv(64)

    def facts(self, attempt_folder: str, method: str) -> dict[str, Any]:
        return {
            "home": str(self.home), "secret": str(self.home / "keys" / "secret"), "attempts": str(self.attempts),
            "other": str(self.attempts / "other"), "attempt": attempt_folder, "pid": self.process.pid,
            "tmp": str(self.shared[0]), "shm": str(self.shared[1]), "tcp": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1], "unix": str(self.home / "socket"),
            "abstract": f"falaj-outside-{os.getpid()}", "sysv": self.sysv, "namespaced": method == "namespaces",
            "sources": str(Path(sys.modules["falaj"].__file__ or "").parents[1]), "site": sysconfig.get_path("purelib"),
        }  # fmt: skip

    def find_damage(self) -> list[str]:
        """What attempts changed outside, or said to it."""
        damage = [str(path) for path in self.home.rglob("planted*")]
        if (self.home / "keys" / "secret").read_text() != "secret of the platform":
            damage.append("secret")
        damage += ["udp was called"] if self.datagrams else []
        for name, listener in (("tcp", self.tcp), ("abstract", self.abstract)):
            listener.setblocking(False)
            try:
                listener.accept()
                damage.append(f"{name} was called")
            except BlockingIOError:
                pass  # no connection came
        return damage if self.process.poll() is None else [*damage, "the outside process ended"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        libc = ctypes.CDLL(None)
        libc.shmctl(self.segment, 0, 0)
        libc.semctl(libc.semget(self.sysv, 1, 0), 0, 0)
        libc.msgctl(libc.msgget(self.sysv, 0), 0, 0)
        for path in self.shared:
            path.unlink()


def choose_escapes(method: str, profile: str, run: str) -> list[Escape]:
    """The attempts that this sandbox must refuse."""
    skipped = "j" if profile == "isolated" else "i"
    if not profile.endswith("replica"):
        skipped += "l"
    if method == "landlock" and profile not in ("isolated", "replica", "feature-replica"):
        skipped += "u"
    if method == "landlock" and profile != "isolated":
        skipped += "r"
    kept = [escape for escape in list_escapes() if not set(escape.flags) & set(skipped)]
    if run == "control":
        real = "cC" if os.geteuid() == 0 else "c"
        return [escape for escape in list_escapes() if set(escape.flags) & set(real)]
    return [escape for escape in kept if run == "full" or "q" in escape.flags]


def build_program(escapes: list[Escape], facts: dict[str, Any], *, apart: bool, control: bool = False) -> str:
    column = platform.machine() == "aarch64"
    numbers = {name: pair[column] for group in CALL_NUMBERS.values() for name, pair in group.items()}
    attempts = [(escape.name, escape.expression) for escape in escapes]
    head = (
        f"CONTROL = {control!r}\nFACTS, NUMBERS = {facts!r}, {numbers!r}\nATTEMPTS, APART = {attempts!r}, {apart!r}\n"
    )
    return head + PRELUDE + HARNESS


def read_outcomes(text: str) -> dict[str, list[str]]:
    lines = [json.loads(line[7:]) for line in text.splitlines() if line.startswith("ESCAPE ")]
    return {name: outcome for name, *outcome in lines}


def run_attempt(outside: Outside, method: str, profile: str, escapes: list[Escape]) -> str:
    """Run the attempts as processes (or staging commands) of an attempt, with the executor that the platform uses."""
    strict = method == "namespaces"
    options = {
        "folder": str(outside.attempts),
        "sandbox": "required" if strict else "best",
        "hidden": str(outside.home),
    }
    if profile == "agent":  # its door is the platform
        options["platform"] = "http://127.0.0.1:1"
    if profile == "feature-replica":
        options["online"] = "redis://127.0.0.1:1"
    executor = ProcessExecutor("process:?nodes=1&cpus=2000&memory=2048", options)
    try:
        folder = outside.attempts / "mine"
        (folder / "code").mkdir(parents=True, mode=0o700)
        program = build_program(escapes, outside.facts(str(folder), method), apart=True)
        staging = profile == "staging"
        bare = attempt(slots("node-1", memory=512), "pass" if staging else program, **_kind(profile))
        placed = replace(bare, folder=str(folder))
        extra: dict[str, Any] = {"stage": [["-c", program]]} if staging else {}
        context = build_document(
            placed, telemetry_s=60, outbox=str(folder / "outbox"), code=str(folder / "code"), **extra
        )
        over(executor, executor.launch(replace(placed, context=context)), 300)
        return (folder / "slot-0.log").read_text()
    finally:
        executor.close()


def _kind(profile: str) -> dict[str, Any]:
    return {"kind": profile, "listen": "127.0.0.1"} if profile.endswith("replica") else {}


def run_isolated(outside: Outside, method: str, escapes: list[Escape]) -> str:
    program = build_program(escapes, outside.facts("/nonexistent", method), apart=False)
    statement = f"exec({program!r}, globals())"
    process = start_isolated("timeit", ["-n1", "-r1", statement], required=True, stderr=subprocess.PIPE)
    return process.communicate(timeout=300)[1].decode(errors="replace")


def run_control(outside: Outside, method: str, escapes: list[Escape]) -> str:
    program = build_program(escapes, outside.facts("/nonexistent", method), apart=True, control=True)
    words = [sys.executable, "-c", program]
    work = outside.home.parent / "work"  # on the file system of the secret, so that hard links are possible
    work.mkdir()
    done = subprocess.run(words, cwd=work, stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    return done.stderr


def main(method: str, profile: str, folder: str, run: str) -> None:
    """Print outcomes and damage."""
    if method == "landlock":
        install_filter({"unshare": CallRule()})
    outside = Outside(Path(folder))
    try:
        escapes = choose_escapes(method, profile, run)
        absent = {escape.name: path for escape in escapes if (path := find_missing_target(escape))}
        if run == "control":
            text = run_control(outside, method, escapes)
        elif profile == "isolated":
            text = run_isolated(outside, method, escapes)
        else:
            text = run_attempt(outside, method, profile, escapes)
        damage = outside.find_damage()
    finally:
        outside.close()
    outcomes = read_outcomes(text)
    for escape in escapes:
        outcome = outcomes.get(escape.name, ["", ""])
        if outcome[0] == "refused" and (escape.name in absent or "timed out" in outcome[1]):
            outcomes[escape.name] = ["absent", absent.get(escape.name, "no answer")]
    missing = [escape.name for escape in escapes if escape.name not in outcomes]
    result = {"outcomes": outcomes, "missing": missing, "damage": damage, "end": text[-2000:] if missing else ""}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
