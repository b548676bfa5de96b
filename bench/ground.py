"""The ground floor's speed: us beside the raw libraries we stand on, on the same work in the same run.

Run by `make bench NAME=ground`. A table for people, then one last line of JSON with every bar. Machines are noisy, so
bars are ratios of medians over several rounds, each round measuring both sides.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scratch import folder

ROUNDS = int(os.environ.get("ROUNDS", "5"))
ROWS: list[tuple[str, str, str, str]] = []
BARS: dict[str, dict[str, Any]] = {}
PYTHON = sys.executable
# Users' Pythons keep compiled modules; ours must too, or every start measures the compiler.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def bar(name: str, value: float, limit: float, *, at_least: bool, ours: str, floor: str) -> None:
    """Note one bar: its value, its limit and both figures it came from."""
    ok = value >= limit if at_least else value <= limit
    BARS[name] = {"value": round(value, 3), "bar": limit, "ok": ok}
    ROWS.append((name, ours, floor, f"{value:.2f} ({'≥' if at_least else '≤'} {limit}) {'ok' if ok else 'MISSED'}"))
    print(f"  {name:<22} {ours:<34} {floor:<34} {ROWS[-1][3]}", flush=True)


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Every bench in turn; `python bench/ground.py verify blobs` runs those two."""
    chosen = sys.argv[1:]
    benches = (verb_in_process, decide, https, group_commit, blobs, verify, start_up)
    print(f"  {'bar':<22} {'ours':<34} {'limit':<34} ratio")
    for bench in benches:
        if not chosen or bench.__name__ in chosen:
            bench()
    print()
    missed = [name for name, found in BARS.items() if not found["ok"]]
    print(f"{len(BARS) - len(missed)} of {len(BARS)} bars met" + (f"; missed: {', '.join(missed)}" if missed else ""))
    print(json.dumps({"bench": "ground", "bars": BARS}))


def bare_sqlite(path: Path) -> sqlite3.Connection:
    """SQLite with our durability and nothing else."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=full")
    db.execute("create table records (name text primary key, body blob)")
    db.execute("create table events (seq integer primary key, body blob)")
    return db


def verb_in_process() -> None:
    """A guarded, recorded, encrypted verb against a bare transaction of the same two rows, equally durable."""
    import falaj

    with folder() as home:
        here = falaj.connect(str(home / "house"))
        db = bare_sqlite(home / "bare.db")
        body = secrets.token_bytes(300)
        turn = iter(range(10**9))

        def bare() -> None:
            for _ in range(200):
                n = next(turn)
                db.execute("begin immediate")
                db.execute("insert into records values (?, ?)", (f"n{n}", body))
                db.execute("insert into events values (?, ?)", (n, body))
                db.execute("commit")

        def ours() -> None:
            for _ in range(200):
                here.people.revoke_run(f"run-{next(turn)}")

        ours(), bare()
        us, floor = [], []
        for _ in range(ROUNDS):
            us.append(seconds(ours) / 200)
            floor.append(seconds(bare) / 200)
        here.close()
        a, b = statistics.median(us), statistics.median(floor)
        bar(
            "verb_vs_sqlite",
            a / b,
            12,
            at_least=False,
            ours=f"{a * 1e6:.0f} µs a verb",
            floor=f"{b * 1e6:.0f} µs bare transaction",
        )


def decide() -> None:
    """Cedar and place() together, no decision cached: 100 policies, 10,000 entities."""
    from falaj.core.context import Actor
    from falaj.core.label import Label
    from falaj.core.policy_scope import PolicyScope
    from falaj.core.settings import Settings
    from falaj.govern.authorizer import Authorizer, PolicyFacts
    from falaj.govern.grants import MAX_GRANT_LIFETIME_S
    from falaj.govern.records import DataMovement, TransferGrant
    from falaj.govern.regimes import load_regimes
    from falaj.govern.residency_check import check_residency
    from falaj.govern.zone_manifest import create_first_zone
    from falaj.services import list_actions

    known = load_regimes()
    zones = {zone.id: zone for zone in [create_first_zone(Settings(), known)]}
    rules = {
        f"rule-{n}": "forbid (principal, action, resource) when "
        f'{{ resource.project == "p{n}" && principal.jurisdiction == "X{n}" }};'
        for n in range(100)
    }
    authorizer = Authorizer(list_actions(), lambda tenant: rules)
    people = [
        Actor(f"u{n}", "bank", roles=frozenset({"data-scientist"}), jurisdiction="AE", projects=frozenset({"*"}))
        for n in range(5000)
    ]
    cells = [PolicyScope("blob", f"project{n}", "home", n % 4, ("AE-PDPL",)) for n in range(5000)]
    label = Label.parse("AE-PDPL,sensitive,purpose=fraud")
    grants = [
        TransferGrant(
            f"g{n}", "bank", "AE-PDPL", "23a", "home", f"z{n}", "blob:a/*", ("fraud",), {}, 0, MAX_GRANT_LIFETIME_S
        )
        for n in range(100)
    ]
    facts = PolicyFacts("bank", True, True, True, False, purpose="fraud")
    took = []
    allowed = 0
    for n in range(4000):
        actor, cell = people[n % 5000], cells[(n * 7) % 5000]
        start = time.perf_counter()
        verdict = check_residency(
            DataMovement("write", label, "blob:a/b", "bank", "home", "home", "fraud"), zones, known, grants, 1.0
        )
        decision = authorizer.decide_afresh(actor, "store.put", cell, facts)
        took.append(time.perf_counter() - start)
        allowed += verdict.allowed and decision.allowed
    if allowed != 4000:
        raise SystemExit(f"the decisions measured are wrong: {allowed} of 4000 allowed")
    median = statistics.median(took) * 1e6
    bar(
        "cedar_place_us",
        median,
        200,
        at_least=False,
        ours=f"{median:.0f} µs both judges",
        floor="100 policies, 10,000 entities",
    )


POST = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.headers["authorization"] = "Bearer {token}"
local n = 0
request = function()
  n = n + 1
  return wrk.format(nil, nil, nil, string.format('{body}', n))
end
"""
ECHO = """
import ssl, sys
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
import uvicorn
async def echo(request):
    return Response(await request.body(), media_type="application/json")
app = Starlette(routes=[Route("/echo", echo, methods=["POST"])])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), ssl_certfile=sys.argv[2], ssl_keyfile=sys.argv[3],
            log_level="error", access_log=False, loop="uvloop", http="httptools")
"""


def https() -> None:
    """The same verb over HTTPS keep-alive, beside a bare Starlette app that echoes the same body."""
    if shutil.which("wrk") is None:
        raise SystemExit("this bench needs wrk: apt-get install wrk")
    with folder() as home, falaj_up(home, tls=True) as (url, token):
        port = free_port()
        tls = home / "house" / "tls"
        cert, key = next(tls.glob("server*.pem")), next(tls.glob("server*.key"))
        (home / "echo.py").write_text(ECHO)
        echo = subprocess.Popen([PYTHON, str(home / "echo.py"), str(port), str(cert), str(key)])
        try:
            wait_for(port)
            us, floor = [], []
            for _ in range(ROUNDS):
                floor.append(wrk(f"https://127.0.0.1:{port}/echo", token, home))
                us.append(wrk(f"{url}/v1/people/revoke_run", token, home))
        finally:
            echo.terminate()
            echo.wait()
    a, b = statistics.median(us), statistics.median(floor)
    bar("https_ratio", a / b, 0.5, at_least=True, ours=f"{a:,.0f} verbs/s", floor=f"{b:,.0f} echoes/s")


def wrk(url: str, token: str, home: Path) -> float:
    """Requests a second with 128 kept-open connections, no two alike; anything but 200 ends the bench."""
    body = json.dumps({"run": f"{secrets.token_hex(8)}-%012d"})
    (home / "post.lua").write_text(POST.format(token=token, body=body))
    done = subprocess.run(
        [shutil.which("wrk") or "wrk", "-t1", "-c128", "-d4s", "-s", str(home / "post.lua"), url],
        capture_output=True,
        text=True,
        check=True,
    )
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise SystemExit(f"{url} did not answer every request:\n{done.stdout}")
    return float(done.stdout.split("Requests/sec:")[1].split()[0])


def group_commit() -> None:
    """Events a second when commits share an fsync, beside one fsync an event: our own, and SQLite's bare."""
    from falaj.core.ref import Ref
    from falaj.server import Server, load_settings

    with folder() as home:
        house = Server(load_settings(str(home / "house")))
        db = bare_sqlite(home / "bare.db")
        body, subject = secrets.token_bytes(400), Ref.parse("blob:bench/thing@v1")
        turn = iter(range(10**9))
        note = "a fact of ordinary length, as rooms write them"

        def grouped() -> None:
            with house.ledger.group():
                for _ in range(500):
                    with house.ledger.write(house.system()) as tx:
                        for _ in range(10):
                            tx.emit("bench.event", subject, size=400, note=note)

        def single() -> None:
            for _ in range(500):
                with house.ledger.write(house.system()) as tx:
                    tx.emit("bench.event", subject, size=400, note=note)

        def bare() -> None:
            for _ in range(500):
                db.execute("begin immediate")
                db.execute("insert into events values (?, ?)", (next(turn), body))
                db.execute("commit")

        grouped(), single(), bare()
        rates: dict[str, list[float]] = {"grouped": [], "single": [], "bare": []}
        for _ in range(ROUNDS):
            rates["grouped"].append(5000 / seconds(grouped))
            rates["single"].append(500 / seconds(single))
            rates["bare"].append(500 / seconds(bare))
        house.close()
    g, s, b = (statistics.median(rates[name]) for name in ("grouped", "single", "bare"))
    ours = f"{g:,.0f} events/s in groups"
    bar("group_commit", g / s, 20, at_least=True, ours=ours, floor=f"{s:,.0f}/s, ours, an fsync each")
    bar("group_commit_bare", g / b, 20, at_least=True, ours=ours, floor=f"{b:,.0f}/s, bare SQLite, an fsync each")


def blobs() -> None:
    """Encrypted put and get of 1 GiB, beside AES-256-GCM alone on one core."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    import falaj

    size, chunk = 1 << 30, 1 << 20
    with folder() as home:
        data = secrets.token_bytes(chunk)
        cipher, nonce = AESGCM(secrets.token_bytes(32)), bytes(12)

        def raw() -> None:
            for _ in range(size // chunk):
                cipher.encrypt(nonce, data, None)

        def to_disk() -> None:
            """The same cipher from file to file, as durable as a put: what the disk alone allows."""
            with source.open("rb") as inward, (home / f"sealed-{len(disk)}").open("wb") as outward:
                while block := inward.read(chunk):
                    outward.write(cipher.encrypt(nonce, block, None))
                outward.flush()
                os.fsync(outward.fileno())

        here = falaj.connect(str(home / "house"))
        source = home / "source"
        put, get, floor, disk = [], [], [], []
        for n in range(max(3, ROUNDS - 2)):
            with source.open("wb") as file:
                for k in range(size // chunk):
                    file.write(data[16:] + n.to_bytes(8, "big") + k.to_bytes(8, "big"))
            floor.append(seconds(raw))
            disk.append(seconds(to_disk))
            put.append(seconds(lambda n=n: here.store.put(f"blob:bench/b{n}", source)))
            get.append(seconds(lambda n=n: [None for _ in here.store.get(f"blob:bench/b{n}")]))
        here.close()
    gib = size / (1 << 30)
    raw_s, put_s, get_s, disk_s = (statistics.median(x) for x in (floor, put, get, disk))
    floor_text = f"{gib / raw_s:.2f} GiB/s AES-256-GCM, one core"
    bar("blob_put", raw_s / put_s, 0.6, at_least=True, ours=f"{gib / put_s:.2f} GiB/s put", floor=floor_text)
    print(f"  {'':<22} {'':<34} {gib / disk_s:.2f} GiB/s AES file to file, fsync   {disk_s / put_s:.2f} of that")
    bar("blob_get", raw_s / get_s, 0.6, at_least=True, ours=f"{gib / get_s:.2f} GiB/s get", floor=floor_text)


def verify() -> None:
    """A million events checked by the offline verifier, beside merely hashing their lines."""
    import hashlib
    from zipfile import ZipFile

    from falaj.core.ref import Ref
    from falaj.server import LocalClient, Server, load_settings

    count, subject = int(os.environ.get("EVENTS", "1000000")), Ref.parse("blob:bench/thing@v1")
    with folder() as home:
        house = Server(load_settings(str(home / "house")))
        here = LocalClient(house, house.owner())
        for _ in range(count // 10_000):
            with house.ledger.write(house.system()) as tx:
                for _ in range(10_000):
                    tx.emit("bench.event", subject, size=400, note="a fact of ordinary length")
        pack = home / "pack.zip"
        with pack.open("wb") as file:
            for chunk in here.audit.export():
                file.write(chunk)
        verifier = home / "falaj_verify.py"
        verifier.write_bytes(here.audit.verifier().read())
        here.close()
        with ZipFile(pack) as z:
            lines = [
                line
                for n in z.namelist()
                if n.endswith(".jsonl") and n.startswith("events/")
                for line in z.read(n).splitlines()
            ]

        def hashing() -> None:
            for line in lines:
                hashlib.sha256(b"\0" + line).digest()

        def checking() -> None:
            subprocess.run([PYTHON, "-I", str(verifier), str(pack), "--json"], check=True, capture_output=True)

        us, floor = [], []
        for _ in range(3):
            floor.append(seconds(hashing))
            us.append(seconds(checking))
    a, b = statistics.median(us), statistics.median(floor)
    bar(
        "verify", a / b, 3, at_least=False, ours=f"{a:.2f} s for {len(lines):,} events", floor=f"{b:.2f} s hashing them"
    )


def start_up() -> None:
    """Help, `falaj up` to ready, and memory at rest."""
    falaj_bin = str(Path(PYTHON).parent / "falaj")
    run = lambda *command: seconds(lambda: subprocess.run(command, check=True, capture_output=True))  # noqa: E731
    bare = lambda: run(PYTHON, "-c", "pass")  # noqa: E731
    helps, floors, ups, imports, memory = [], [], [], [], []
    for _ in range(10):
        floors.append(bare())
        helps.append(run(falaj_bin, "--help"))
    for _ in range(ROUNDS):
        imports.append(run(PYTHON, "-c", "import starlette, uvicorn, sqlite3, cryptography"))
        with folder() as home:
            with falaj_up(home):
                pass
            began = time.perf_counter()
            with falaj_up(home) as (url, _):
                ups.append(time.perf_counter() - began)
                time.sleep(1.0)
                memory.append(resident_mb(url))
    h, f, u, i, m = (statistics.median(x) for x in (helps, floors, ups, imports, memory))
    bar(
        "help",
        h / f,
        4,
        at_least=False,
        ours=f"{h * 1e3:.0f} ms falaj --help",
        floor=f"{f * 1e3:.0f} ms python -c pass",
    )
    bar(
        "up",
        u / i,
        3,
        at_least=False,
        ours=f"{u * 1e3:.0f} ms to ready",
        floor=f"{i * 1e3:.0f} ms importing what it stands on",
    )
    bar("idle_mb", m, 150, at_least=False, ours=f"{m:.0f} MB resident", floor="")


SERVER: dict[str, int] = {}


@contextlib.contextmanager
def falaj_up(home: Path, *, tls: bool = False) -> Iterator[tuple[str, str]]:
    """A server as a user starts it, its address and (at first start) the token of someone who may ask for approvals."""
    env = {**os.environ, "FALAJ_LIMITS_REQUESTS_PER_S": "1000000000", "FALAJ_LIMITS_BURST": "1000000000"}
    command = [
        str(Path(PYTHON).parent / "falaj"),
        "up",
        "--at",
        str(home / "house"),
        "--listen",
        "127.0.0.1:0",
        "--log",
        "ERROR",
    ]
    server = subprocess.Popen([*command, *(["--tls"] if tls else [])], stdout=subprocess.PIPE, text=True, env=env)
    try:
        first = server.stdout.readline()
        url = first.split()[-1]
        SERVER[url] = server.pid
        token = ""
        if tls:
            for line in server.stdout:
                if "fj_" in line:
                    token = line.strip()
                    break
        yield url, token
    finally:
        server.terminate()
        server.wait(timeout=30)


def resident_mb(url: str) -> float:
    """Resident memory of the server at this address."""
    status = Path(f"/proc/{SERVER[url]}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(port: int) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    raise SystemExit("the echo server did not start")


if __name__ == "__main__":
    main()
