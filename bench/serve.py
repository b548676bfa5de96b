"""Serving: our server beside MLServer, KServe, LitServe, BentoML and Triton, and beside ONNX Runtime in process.

    make bench NAME=serve              everything; about twelve minutes on two cores
    python bench/serve.py small        one part: small, encoder, batching, gateway, cold, swaps, memory
    --small                            bursts of one second, one round; its figures mean little

Needs wrk, h2load and nginx (Debian: wrk, nghttp2-client, nginx-light). Every server has one core and the load another;
sides take turns in every round, figures are medians of rounds, CPU time is that of the server's whole process tree.
Those whose turn it is not are idle beside, ours too: all of them together take about a hundredth of the core then, and
a request of ours costs the same CPU time whether they are idle or stopped.
Ours runs as users run it: tokens checked, tensors validated, histograms kept, one request in a hundred written down.
Before anything is measured each server answers once and the answer is compared with what the model gives in process.
A table for people, then one last line of JSON with every bar, missed ones too.
"""

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import numpy as np  # noqa: E402
from bars import bar, told  # noqa: E402
from scratch import folder  # noqa: E402
from serve_load import SERVER_CORE, Shot, Target, burst, median, rss_mib, started, until  # noqa: E402

from tests.infer import models  # noqa: E402
from tests.servers import peers  # noqa: E402
from tests.servers.process import free_ports, listens  # noqa: E402

SMALL = "--small" in sys.argv
ROUNDS, SECONDS = (1, 1.0) if SMALL else (3, 2.0)
PAIRS = 1 if SMALL else 9
"""Rounds of a ratio between two sides that are near each other: each is of two bursts, one right after the other."""
TOKEN = "bench-token"  # noqa: S105 - of a server that lives for this bench
PEERS = {
    "mlserver": peers.MLSERVER, "kserve": peers.KSERVE, "litserve": peers.LITSERVE, "bentoml": peers.BENTOML,
    "triton": peers.TRITON,
}  # fmt: skip
OWN_WORDS = ("litserve", "bentoml")
X = (np.arange(32, dtype=np.float32) / 32).reshape(1, 32)
TOKENS = (np.arange(32, dtype=np.int64) * 7 % 1024).reshape(1, 32)


def main() -> None:
    """The parts that were named, or all."""
    told("serve", [small, encoder, batching, gateway, cold, swaps, memory], small=SMALL)


def small() -> None:
    """An MLP of 32-64-1: what a server costs beside its model."""
    with folder() as at, contextlib.ExitStack() as open_:
        model = models.mlp(at / "m") / "model.onnx"
        limit = in_process(model, X, (1, 32))
        targets = [*ours(open_, at, model.parent, X), *strangers(open_, at, model, X), static(open_, at)]
        found = in_turns(targets, (1, 8, 64))
    table(targets, found, (1, 8, 64))
    print(f"  in process, batch 1: {limit[1][0]:,.0f} a second; batch 32: {limit[32][0]:,.0f} rows a second")
    at64 = {name: found[name, 64] for name, c in found if c == 64}
    for kind in ("json", "binary"):
        one = at64[f"ours {kind}"]
        bar(f"{kind}_vs_mlserver", one.per_s / at64["mlserver json"].per_s, ">=", 20)
        bar(f"{kind}_vs_triton", one.per_s / at64[f"triton {kind}"].per_s, ">=", 10)
        bar(f"{kind}_cpu_us", one.cpu_us, "<=", 40, "60 must")
        rivals = {
            name: shot
            for name, shot in at64.items()
            if shot.per_s and not name.startswith(("ours", "nginx", "grpc.aio"))
        }
        bar(f"{kind}_p99_of_best_peer", one.p99_us / min(shot.p99_us for shot in rivals.values()), "<=", 0.25)
        bar(f"{kind}_p50_of_nginx", found[f"ours {kind}", 1].p50_us / found["nginx static", 1].p50_us, "<=", 3)
    bar("grpc_vs_grpcaio", at64["ours grpc"].per_s / at64["grpc.aio by hand"].per_s, ">=", 8)
    bar("wrong_answers", sum(shot.bad for (name, _), shot in found.items() if name.startswith("ours")), "==", 0)


def encoder() -> None:
    """Five million parameters: near the limit of the core, or not."""
    with folder() as at, contextlib.ExitStack() as open_:
        model = models.encoder(at / "m") / "model.onnx"
        targets = [
            one for one in (*ours(open_, at, model.parent, TOKENS), *strangers(open_, at, model, TOKENS))
            if "grpc" not in one.name
        ]  # fmt: skip
        shots = in_turns(targets, (8, 32))
        sizes = in_process(model, TOKENS, (1, 2, 4, 8, 16, 32), SECONDS)
        best = max(sizes, key=lambda size: sizes[size][0])
        limits, ratios = list[float](), dict[int, list[float]]({8: [], 32: []})
        for _ in range(PAIRS):
            for connections, found in ratios.items():
                limits.append(in_process(model, TOKENS, (best,), SECONDS)[best][0])
                found.append(burst(targets[0], connections, SECONDS).per_s / limits[-1])
    table(targets, shots, (8, 32))
    print(f"  in process at its best batch, {best}: {statistics.median(limits):,.0f} rows a second")
    for connections, found in ratios.items():
        bar(f"encoder_c{connections}_of_limit", statistics.median(found), ">=", 0.95)


def batching() -> None:
    """What batching costs somebody who comes alone."""
    with folder() as at, contextlib.ExitStack() as open_:
        model = models.mlp(at / "m").parent / "m"
        on = next(one for one in ours(open_, at, model, X) if one.name == "ours json")
        off = next(one for one in ours(open_, at, model, X, off=True) if one.name == "ours json")
        sides = [
            Target("on", on.url, on.body, on.headers, on.pids),
            Target("off", off.url, off.body, off.headers, off.pids),
        ]
        found = in_turns(sides, (1, 64))
    table(sides, found, (1, 64))
    bar("batching_p50_at_1", found["on", 1].p50_us / found["off", 1].p50_us, "<=", 1.3)


def gateway() -> None:
    """One hop more: the gateway before a replica, both on the server's core."""
    from serve_house import behind_gateway

    with folder() as at, contextlib.ExitStack() as open_:
        model = models.mlp(at / "m")
        direct = [one for one in ours(open_, at, model, X) if one.name != "ours grpc"]
        hop = open_.enter_context(behind_gateway(at / "house", model, X, SERVER_CORE))
        found = in_turns([*direct, *hop], (1, 64))
        ratios = [
            [burst(far, 64, SECONDS).per_s / burst(near, 64, SECONDS).per_s for _ in range(PAIRS)]
            for near, far in zip(direct, hop, strict=True)
        ]
    table([*direct, *hop], found, (1, 64))
    for kind, pairs in zip(("json", "binary"), ratios, strict=True):
        bar(f"gateway_{kind}_of_direct", statistics.median(pairs), ">=", 0.7)


def cold() -> None:
    """From nothing to the first answer, against starting the process and loading the model by hand."""
    from serve_house import asleep_and_awake

    with folder() as at:
        model = models.encoder(at / "m")
        hand = [by_hand(at, model) for _ in range(ROUNDS)]
        woken = asleep_and_awake(at / "house", model, TOKENS, ROUNDS)
    ours_s, hand_s = statistics.median(woken), statistics.median(hand)
    print(f"  process start and model load {hand_s:.2f} s; first answer of an endpoint that slept {ours_s:.2f} s")
    bar("cold_start", ours_s / hand_s, "<=", 2)


def swaps() -> None:
    """A hundred versions one after the other under load: nobody notices."""
    count = 10 if SMALL else 100
    with folder() as at, contextlib.ExitStack() as open_:
        shelf = at / "shelf"
        models.mlp(shelf / "m" / "1")
        target = next(one for one in ours(open_, at, None, X, repository=shelf) if one.name == "ours json")
        base = target.url.removesuffix("/v2/models/m/infer")
        loading = subprocess.Popen(
            [sys.executable, "-c", LOADING, base, str(shelf), str(count), TOKEN, str(ROOT)], stdout=subprocess.PIPE
        )
        shots = []
        while loading.poll() is None:
            shots.append(burst(target, 64, 2.0))
        said = (loading.stdout or sys.stdin).read().decode().strip()  # type: ignore[union-attr]
    print(f"  {said}; {sum(shot.per_s * 2 for shot in shots):,.0f} requests meanwhile")
    bar("swaps_done", float(said.split()[0]), "==", count)
    bar("swaps_failed_requests", sum(shot.bad for shot in shots), "==", 0)


LOADING = """
import sys, urllib.request
from pathlib import Path
base, shelf, count, token, root = sys.argv[1:]
sys.path.insert(0, root)
from tests.infer import models
done = 0
for number in range(2, int(count) + 2):
    models.mlp(Path(shelf) / "m" / str(number), seed=number)
    ask = urllib.request.Request(base + "/v2/repository/models/m/load", b"{}", {"authorization": "Bearer " + token})
    with urllib.request.urlopen(ask) as answer:
        done += answer.status == 200
print(done, "versions swapped in")
"""


def memory() -> None:
    """Loading and unloading again and again gives everything back."""
    count = 10 if SMALL else 100
    with folder() as at, contextlib.ExitStack() as open_:
        shelf = at / "shelf"
        models.encoder(shelf / "m" / "1")
        target = next(one for one in ours(open_, at, None, TOKENS, repository=shelf) if one.name == "ours json")
        base, pid = target.url.removesuffix("/v2/models/m/infer"), target.pids[0]
        asked: list[float] = []
        for _ in range(count):
            ask(f"{base}/v2/repository/models/m/unload", b"{}")
            asked.append(rss_mib(pid))
            ask(f"{base}/v2/repository/models/m/load", b"{}")
            ask(target.url, target.body)
    # What one unload leaves differs from the next: medians of several.
    few = count // 10
    early, late = statistics.median(asked[:few]), statistics.median(asked[-few:])
    print(f"  unloaded: {early:.0f} MiB in the first {few} rounds, {late:.0f} in the last {few} of {count}")
    bar("memory_after_rounds", late / early, "<=", 1.1)


# sides


def ours(
    open_: contextlib.ExitStack,
    at: Path,
    model: Path | None,
    rows: Any,
    *,
    off: bool = False,
    repository: Path | None = None,
) -> Iterator[Target]:
    """Our server by itself, with everything on; `off`: without running requests together."""
    home = at / f"ours-{len(list(at.glob('ours-*')))}"
    home.mkdir()
    sheet = {"sheet": {"batches": True, "most_rows": 1}} if off else {}
    config = {
        "models": [{"name": "m", "version": "1", "folder": str(model), "files": models.digests(model), **sheet}]
        if model
        else [],
        "repository": str(repository or ""),
        "http": "127.0.0.1:0",
        "grpc": "127.0.0.1:0",
        "keys": [hashlib.sha256(TOKEN.encode()).hexdigest()],
        "journal": {"folder": str(home / "journal"), "sample": 0.01},
    }
    (home / "config.json").write_text(json.dumps(config))
    process = open_.enter_context(
        started([sys.executable, "-m", "falaj.infer", str(home / "config.json")], home / "log")
    )
    line = process.stdout.readline() if process.stdout else b""
    if not line:
        raise SystemExit(f"our server did not start: {(home / 'log').read_text()[-500:]}")
    ready = json.loads(line)
    head = {"authorization": f"Bearer {TOKEN}"}
    http = f"http://{ready['http']}"
    if repository:
        ask(f"{http}/v2/repository/models/m/load", b"{}")
    for name, body, more in bodies(rows):
        target = Target(f"ours {name}", f"{http}/v2/models/m/infer", body, {**head, **more}, (process.pid,))
        if not repository and model is not None:
            check(target, model / "model.onnx", rows)
        yield target
    yield Target(
        "ours grpc", f"http://{ready['grpc']}/inference.GRPCInferenceService/ModelInfer", grpc_body(rows), head,
        (process.pid,), http2=True,
    )  # fmt: skip


def strangers(open_: contextlib.ExitStack, at: Path, model: Path, rows: Any) -> Iterator[Target]:
    """Everybody else, each with its own Python."""
    for name, wanted in PEERS.items():
        python = {"python": "/usr/bin/python3.11"} if name == "triton" else {}
        try:
            home = peers.peer(name, *wanted, **python)
            targets = list(_stranger(open_, at, name, str(home / "python"), model, rows))
        except (peers.Missing, SystemExit) as missing:
            print(f"  {name} is left out: {str(missing)[-200:]}", flush=True)
            continue
        yield from targets
    if rows.dtype == np.float32:
        port = next(free_ports(1))
        grpc = port + 1
        script = [sys.executable, str(ROOT / "bench/serve_peers.py"), "grpcaio", str(model), str(port), str(grpc)]
        process = open_.enter_context(started(script, at / "grpcaio.log"))
        until(lambda: listens(grpc), "grpc.aio")
        url = f"http://127.0.0.1:{grpc}/inference.GRPCInferenceService/ModelInfer"
        yield Target("grpc.aio by hand", url, grpc_body(rows), {}, (process.pid,), http2=True)


def _stranger(
    open_: contextlib.ExitStack, at: Path, name: str, python: str, model: Path, rows: Any
) -> Iterator[Target]:
    port = next(free_ports(1, 2))
    grpc = port + 1
    script = [python, str(ROOT / "bench/serve_peers.py"), name, str(model), str(port), str(grpc)]
    process = open_.enter_context(started(script, at / f"{name}.log"))
    if name in OWN_WORDS:
        body = json.dumps({"data": rows.tolist()}).encode()
        made = [
            Target(
                f"{name} json",
                f"http://127.0.0.1:{port}/predict",
                body,
                {"content-type": "application/json"},
                (process.pid,),
            )
        ]
    else:
        kinds = bodies(rows) if name != "mlserver" else bodies(rows)[:1]
        url = f"http://127.0.0.1:{port}/v2/models/m/infer"
        made = [Target(f"{name} {kind}", url, body, more, (process.pid,)) for kind, body, more in kinds]
    for target in made:
        until(lambda target=target: check(target, model, rows), target.name, 90)
        yield target


def static(open_: contextlib.ExitStack, at: Path) -> Target:
    """nginx with an answer that is always the same: what the machine allows."""
    port = next(free_ports())
    (at / "nginx.conf").write_text(NGINX.format(home=at, port=port))
    process = open_.enter_context(started(["nginx", "-p", str(at), "-c", str(at / "nginx.conf")], at / "nginx.log"))
    until(lambda: listens(port), "nginx")
    return Target("nginx static", f"http://127.0.0.1:{port}/", b"", {}, (process.pid,))


NGINX = """
daemon off; master_process off; worker_processes 1; pid {home}/nginx.pid; error_log {home}/error.log;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {home}/b; proxy_temp_path {home}/p;
 fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
 server {{ listen 127.0.0.1:{port}; location / {{ return 200 "{{\\"live\\":true}}"; }} }} }}
"""


# requests


def bodies(rows: Any) -> list[tuple[str, bytes, dict[str, str]]]:
    """The same request in JSON and in binary, with the headers of each."""
    name, kind = ("x", "FP32") if rows.dtype == np.float32 else ("tokens", "INT64")
    shape = list(rows.shape)
    plain = {"inputs": [{"name": name, "shape": shape, "datatype": kind, "data": rows.ravel().tolist()}]}
    given = {"name": name, "shape": shape, "datatype": kind, "parameters": {"binary_data_size": rows.nbytes}}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    length = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    return [
        ("json", json.dumps(plain).encode(), {"content-type": "application/json"}),
        ("binary", head + rows.tobytes(), length),
    ]


def grpc_body(rows: Any) -> bytes:
    """A ModelInferRequest."""
    from tritonclient.grpc import service_pb2 as pb

    asked = pb.ModelInferRequest(model_name="m", raw_input_contents=[rows.tobytes()])
    name, kind = ("x", "FP32") if rows.dtype == np.float32 else ("tokens", "INT64")
    asked.inputs.add(name=name, datatype=kind, shape=rows.shape)
    return bytes(asked.SerializeToString())


def ask(url: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[bytes, int]:
    """One request by hand: the answer, and the length of its JSON where tensors follow it."""
    head = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", **(headers or {})}
    asked = urllib.request.Request(url, body, head)  # noqa: S310 - a server that this bench started
    with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
        return answer.read(), int(answer.headers.get("inference-header-content-length") or 0)


def check(target: Target, model: Path, rows: Any) -> bool:
    """True when it answers what the model gives; SystemExit when it answers something else."""
    data, size = ask(target.url, target.body, target.headers)
    want = in_process_answer(model, rows)
    if size:
        got = np.frombuffer(data[size:], np.float32)
    else:
        said = json.loads(data)
        got = np.asarray(said["outputs"][0]["data"] if "outputs" in said else said["y"], np.float32)
    if got.size != want.size or not np.allclose(got.ravel(), want.ravel(), atol=1e-3):
        raise SystemExit(f"{target.name} answers {got.ravel()[:3]} and not {want.ravel()[:3]}")
    return True


def session(model: Path) -> Any:
    """The model in this process, on one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def in_process_answer(model: Path, rows: Any) -> Any:
    """What the model gives."""
    run = session(model)
    return run.run(None, {run.get_inputs()[0].name: rows})[0]


def in_process(
    model: Path, rows: Any, batches: tuple[int, ...], seconds: float = 0.5
) -> dict[int, tuple[float, float]]:
    """Rows a second and microseconds a run by batch size, on the server's core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {int(SERVER_CORE)})
    try:
        run, found = session(model), {}
        name = run.get_inputs()[0].name
        for size in batches:
            many = np.repeat(rows, size, 0)
            run.run(None, {name: many})
            begun, count = time.perf_counter(), 0
            while (took := time.perf_counter() - begun) < seconds:
                run.run(None, {name: many})
                count += 1
            found[size] = (count * size / took, took / count * 1e6)
        return found
    finally:
        os.sched_setaffinity(0, before)


def by_hand(at: Path, model: Path) -> float:
    """Seconds from starting our server's process to its being ready with the model."""
    with contextlib.ExitStack() as open_:
        begun = time.perf_counter()
        next(iter(ours(open_, at, model, TOKENS)))
        return time.perf_counter() - begun


def in_turns(targets: list[Target], connections: tuple[int, ...]) -> dict[tuple[str, int], Shot]:
    """Every side at every concurrency, in turns; medians."""
    found: dict[tuple[str, int], list[Shot]] = {}
    for target in targets:
        burst(target, 8, 0.5 if not target.http2 else 1.0)
    for _ in range(ROUNDS):
        for target in targets:
            for count in connections:
                found.setdefault((target.name, count), []).append(burst(target, count, SECONDS))
    return {key: median(shots) for key, shots in found.items()}


def table(targets: list[Target], found: dict[tuple[str, int], Shot], connections: tuple[int, ...]) -> None:
    """For people."""
    heads = "".join(f"{f'c={count}: a second':>16}{'p50 us':>9}{'p99 us':>9}{'CPU us':>8}" for count in connections)
    print(f"  {'':<18}{heads}")
    for target in targets:
        cells = ""
        for count in connections:
            shot = found[target.name, count]
            cells += f"{shot.per_s:16,.0f}{shot.p50_us:9,.0f}{shot.p99_us:9,.0f}{shot.cpu_us:8.0f}"
            cells += f" {shot.bad} BAD" if shot.bad else ""
        print(f"  {target.name:<18}{cells}", flush=True)


if __name__ == "__main__":
    main()
