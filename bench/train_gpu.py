"""Training on one GPU: our loop against the same loop by hand, use of the chip, strictness, checkpoints, autotune.

    python bench/train_gpu.py             every part (about twenty-five minutes on an H200)
    python bench/train_gpu.py loop mfu    some of them

Needs torch, numpy and a CUDA device, and nothing else. Every measurement that compiles or fills the device is a process
of its own. MFU is by PaLM's count against 989 TFLOP/s; a figure is a median over steps timed by the device's events.
A table for people, then one last line of JSON.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]

PEAK = 989e12
SCRIPT = str(ROOT / "bench" / "gpt_train.py")
Bar = tuple[float, float, bool, str]
BARS: dict[str, Bar] = {}


def bar(name: str, value: float, limit: float, at_least: bool, note: str = "") -> None:
    """One line of the table."""
    BARS[name] = (value, limit, at_least, note)
    good = value >= limit if at_least else value <= limit
    print(
        f"  {name:32} {value:10.4g} ({'≥' if at_least else '≤'} {limit:g}) {'ok' if good else 'MISSED':7} {note}",
        flush=True,
    )


def main() -> None:
    """The parts that were named, or all of them."""
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(CHILDREN[sys.argv[2]](**json.loads(sys.argv[3]))))
        return
    began = time.time()
    for name in sys.argv[1:] or PARTS:
        print(f"\n{name} (at {time.time() - began:.0f} s)", flush=True)
        PARTS[name]()
    bars = {
        name: {"value": round(value, 4), "bar": limit, "ok": value >= limit if at_least else value <= limit}
        for name, (value, limit, at_least, _) in BARS.items()
    }
    print(json.dumps({"bench": "train_gpu", "bars": bars}))


def child(name: str, said: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    """A measurement in a process of its own; `said` are options of the run."""
    env = {**os.environ, "FALAJ_TRAIN": json.dumps(said or {})}
    done = subprocess.run(
        [sys.executable, __file__, "child", name, json.dumps(how)], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"  {name} {how} {said} FAILED: {done.stderr.strip()[-600:]}", flush=True)
        return {}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


# parts


def limits() -> None:
    """What the chip does at best."""
    found = child("limits")
    print("  " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)


def loop() -> None:
    """Our loop against the same by hand, on the same model, in turns."""
    for size in ("124M", "350M", "1.3B"):
        got = child("turns", {"compile": True, "precision": "bf16"}, size=size)
        if got:
            note = f"{got['ours_ms']:.2f} ms a step, by hand {got['bare_ms']:.2f}; MFU {got['mfu']:.1f} %"
            bar(f"loop_of_bare_{size}", got["bare_ms"] / got["ours_ms"], 0.99, True, note)


def mfu() -> None:
    """Use of the chip, and against the plain script in fp32."""
    rows = [
        ("124M", {"compile": True, "precision": "bf16"}, {}),
        ("1.3B", {"compile": True, "precision": "bf16"}, {"micro": 24}),
        ("1.3B", {"compile": True, "precision": "fp8"}, {}),
        ("1.3B", {"compile": True, "precision": "fp8"}, {"micro": 32}),
        ("1.3B", {"compile": True, "precision": "bf16", "activation": "blocks"}, {}),
    ]
    found: dict[str, list[tuple[float, str]]] = {}
    for size, said, how in rows:
        got = child("steps", said, size=size, **how)
        if got:
            words = " ".join(f"{key}={value}" for key, value in (said | how).items())
            words += f": {got['tokens_s']:,.0f} tokens/s, {got['gib']:.0f} GiB"
            print(f"    {size} MFU {got['mfu']:.1f} % {words}", flush=True)
            kind = "fp8" if said["precision"] == "fp8" else "bf16"
            found.setdefault(f"{size}_{kind}", []).append((got["mfu"], words))
    plain = child("plain", size="1.3B", micro=4)
    hand = child("autocast", size="1.3B")
    if hand:
        print(f"    1.3B by hand with autocast, compiled: MFU {hand['mfu']:.1f} %, {hand['gib']:.0f} GiB", flush=True)
    for key, name, least in (
        ("124M_bf16", "mfu_124M", 50),
        ("1.3B_bf16", "mfu_1.3B", 60),
        ("1.3B_fp8", "mfu_1.3B_fp8", 65),
    ):
        if key in found:
            bar(name, *max(found[key])[:1], least, True, max(found[key])[1])
    if plain and found.get("1.3B_bf16"):
        best = max(one for key, rows in found.items() if key.startswith("1.3B") for one, _ in rows)
        bar("of_plain_fp32", best / plain["mfu"], 4, True, f"plain fp32 script {plain['tokens_s']:,.0f} tokens/s")


def strict() -> None:
    """What the same bits cost."""
    loose = child("steps", {"compile": True, "precision": "bf16"}, size="1.3B")
    tight = child("steps", {"compile": True, "precision": "bf16", "reproducible": "strict"}, size="1.3B")
    if loose and tight:
        note = f"{tight['ms']:.0f} ms against {loose['ms']:.0f} a step at 1.3B, {tight['gib']:.0f} GiB"
        bar("strict_cost_percent", 100 * (tight["ms"] / loose["ms"] - 1), 5, False, note)
    said = {"compile": True, "precision": "bf16", "reproducible": "strict", "micro": 8}
    bits = [child("digest", said, stop=stop).get("sha") for stop in (0, 0, 6)]
    differ = sum(one is None or one != bits[0] for one in bits)  # a run that failed gave no bits at all
    note = "three runs of 12 steps, one of them stopped and resumed in between"
    bar("strict_runs_that_differ", differ, 0, False, note)


def save() -> None:
    """How long a checkpoint of 1.3B parameters holds training up."""
    got = child("saving", {"compile": "blocks", "precision": "bf16"}, size="1.3B")
    if got:
        note = f"{got['stall_ms']:.0f} ms beyond a step of {got['ms']:.0f} ms; {got['gb']:.1f} GB durable"
        note += f" after {got['durable_s']:.1f} s"
        bar("checkpoint_stall_of_step", got["stall_ms"] / got["ms"], 1.0, False, note)
        bar(
            "checkpoint_stall_of_dcp",
            got["stall_ms"] / got["dcp_ms"],
            0.2,
            False,
            f"DCP async with pinned staging {got['dcp_ms']:.0f} ms",
        )


def restart() -> None:
    """From the start of the process to the end of its first step: cold, and resumed."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "SIZE": "350M", "CHECKPOINTS": folder, "FALAJ_TRAIN": json.dumps({"compile": "blocks"})}
        took = []
        for steps in ("6", "6", "10"):  # the first one fills the compiler's cache
            if steps == "6":
                for old in Path(folder).iterdir():
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
            done = subprocess.run(
                [sys.executable, SCRIPT],
                env={**env, "STEPS": steps, "SAVE": "3"},
                capture_output=True,
                text=True,
                check=False,
            )
            found = re.search(r"number (\d+), after ([\d.]+) s", done.stdout)
            if not found:
                print(f"  FAILED {done.stderr[-400:]}", flush=True)
                return
            took.append((int(found[1]), float(found[2])))
        note = f"cold {took[1][1]:.1f} s, resumed at step {took[2][0]} after {took[2][1]:.1f} s (350M)"
        bar("restart_of_cold", took[2][1] / took[1][1], 1.5, False, note)


def tune() -> None:
    """Autotune: its choice, its prediction, and the truth about the largest micro-batch. Takes a quarter of an hour;
    what was chosen is kept, so one that was cut off goes on with the truth when run again."""
    batch, size_name = 960, "82M"  # A quarter of the layers compile in a quarter of the time; the question is the same.
    env = {**os.environ, "SIZE": size_name, "BATCH": str(batch), "STEPS": "100000"}
    began = time.time()
    # Told as it goes: every candidate is a process of its own and some compile for a minute.
    with subprocess.Popen(
        [sys.executable, "-m", "falaj.train.autotune", "--steps=6", "--limit-s=75", "--cache=bench-tuned", SCRIPT],
        env={**env, "PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as asked:  # fmt: skip
        lines = []
        for told in asked.stdout or ():
            if told.startswith("{"):
                lines.append(json.loads(told))
                _tell_tried(lines[-1])
    tuned = next((line["tuned"] for line in lines if "tuned" in line), None)
    if tuned is None:
        print("  FAILED: nothing was chosen", flush=True)
        return
    took = f"{time.time() - began:.0f} s; {tuned['largest']:.0f} with room to spare, {tuned['brim']:.0f} to the brim"
    print(f"    chosen {tuned['changes']} in {took}", flush=True)
    if tuned["brim"]:
        said = {key: value for key, value in tuned["changes"].items() if key != "micro"}
        low, high = int(0.85 * tuned["brim"]), int(1.15 * tuned["brim"])
        while high - low > 0.01 * low:  # the largest that runs lies between them
            size = (low + high) // 2
            fits = bool(child("steps", said, size=size_name, micro=size, steps=3))
            low, high = (size, high) if fits else (low, size)
        off = 100 * abs(tuned["brim"] / low - 1)
        note = f"predicted {tuned['brim']:.0f}, true {low}; the run itself takes {tuned['changes'].get('micro', 0)}"
        bar("autotune_largest_off_percent", off, 5, False, note)


def _tell_tried(line: dict[str, Any]) -> None:
    if "tried" in line:
        one = line["tried"]
        much = f"{one['units_s']:9.2f} samples/s {one['memory_bytes'] / 2**30:6.1f} GiB"
        print(f"    {one['name']:28} {much} {one['verdict']}", flush=True)


def fp8() -> None:
    """Does a model in 8 bits learn as one in 16 does?"""
    losses = {name: child("learn", {"precision": name, "compile": "blocks"}) for name in ("bf16", "fp8")}
    if all(losses.values()):
        off = 100 * (losses["fp8"]["loss"] / losses["bf16"]["loss"] - 1)
        bar(
            "fp8_loss_above_bf16_percent",
            off,
            1.0,
            False,
            f"{losses['fp8']['loss']:.4f} against {losses['bf16']['loss']:.4f} after 400 steps, 4 layers, width 1,024",
        )


PARTS: dict[str, Callable[[], None]] = {
    "limits": limits, "loop": loop, "mfu": mfu, "strict": strict, "save": save, "restart": restart, "fp8": fp8,
    "tune": tune,
}  # fmt: skip


# children: each in a process of its own


def c_limits() -> dict[str, float]:
    import torch
    from triton.testing import do_bench

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    big, pinned = torch.empty(2**30, device="cuda"), torch.empty(2**28, pin_memory=True)
    product, copy, home = (
        do_bench(work, return_mode="median")
        for work in (lambda: a @ a, big.clone, lambda: pinned.copy_(big[: 2**28], non_blocking=True))
    )
    return {
        "TFLOP/s": 2 * 8192**3 / product / 1e9,
        "copy GB/s": 2 * big.nbytes / copy / 1e6,
        "to host GB/s": pinned.nbytes / home / 1e6,
    }


def _begun(size: str, micro: int = 0, folder: str = "", **options: Any) -> tuple[Any, ...]:
    """A run as a script would have it."""
    import gpt_train
    import torch
    from gpt import SIZES

    from falaj.train import strict_gradients as strictness
    from falaj.train.mesh import ProcessMesh
    from falaj.train.options import Options
    from falaj.train.run import Run

    context, usual = SIZES[size][3:]
    said = Options(**{"save_s": 0, **options}).said()
    if said.reproducible == "strict":
        strictness.prepare_strict(said)
    torch.manual_seed(3)
    run = Run(said, ProcessMesh.here(said), Path(folder) if folder else None)
    net = gpt_train.model(run, size)
    data = run.data(gpt_train.source(context), batch=micro or usual)
    wrapped = run.parallel(net)
    return run, net, wrapped, run.adamw(wrapped, lr=1e-4), data, (micro or usual) * context


def _mark(marks: list[Any]) -> None:
    import torch

    marks.append(torch.cuda.Event(enable_timing=True))
    marks[-1].record()


def _median(marks: Sequence[Any]) -> float:
    """Milliseconds between marks."""
    import torch

    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))


def _learn(step: Any, wrapped: Any, net: Any) -> None:
    from falaj.train.fused_loss import linear_cross_entropy

    for batch in step.micro():
        hidden = wrapped(batch["tokens"][:, :-1])
        step.backward(*linear_cross_entropy(hidden, net.words.weight, batch["tokens"][:, 1:]))


def _told(net: Any, tokens: int, ms: float) -> dict[str, float]:
    import torch

    rate = tokens / ms * 1e3
    return {
        "ms": ms, "tokens_s": rate, "mfu": 100 * rate * net.flops_per_token / PEAK,
        "gib": torch.cuda.max_memory_allocated() / 2**30,
    }  # fmt: skip


def c_steps(size: str, micro: int = 0, steps: int = 12) -> dict[str, float]:
    run, net, wrapped, opt, data, tokens = _begun(size, micro)
    marks: list[Any] = []
    for step in run.steps(steps + 4, data):
        _learn(step, wrapped, net)
        step.apply(opt)
        _mark(marks)
    return _told(net, tokens, _median(marks[3:]))


def c_turns(size: str) -> dict[str, float]:
    """Blocks of steps, ours and by hand in turns, on the same model, optimizer and kind of batches."""
    import torch

    from falaj.train.fused_loss import linear_cross_entropy

    each, rounds = (20, 5) if size != "1.3B" else (8, 4)
    run, net, wrapped, opt, data, tokens = _begun(size)
    took: dict[str, list[float]] = {"ours": [], "bare": []}
    context = net.context
    batches = [torch.randint(0, 50304, (tokens // context, context + 1), device="cuda") for _ in range(4)]

    def by_hand() -> None:
        for number in range(each):
            batch = batches[number % 4]
            total, _ = linear_cross_entropy(wrapped(batch[:, :-1]), net.words.weight, batch[:, 1:])
            (total / tokens).backward()
            opt.step()
            opt.zero_grad()

    warm = 5
    began = 0.0
    for step in run.steps(warm + each * rounds, data):
        if step.number >= warm and (step.number - warm) % each == 0:
            torch.cuda.synchronize()
            by_hand_began = time.perf_counter()
            by_hand()
            torch.cuda.synchronize()
            took["bare"].append((time.perf_counter() - by_hand_began) / each * 1e3)
            began = time.perf_counter()
        _learn(step, wrapped, net)
        step.apply(opt)
        if step.number >= warm and (step.number - warm) % each == each - 1:
            torch.cuda.synchronize()
            took["ours"].append((time.perf_counter() - began) / each * 1e3)
    ours, bare = statistics.median(took["ours"]), statistics.median(took["bare"])
    return {**_told(net, tokens, ours), "ours_ms": ours, "bare_ms": bare}


def c_plain(size: str, micro: int) -> dict[str, float]:
    """The script of somebody who knows nothing of us: fp32, eager."""
    import torch
    from gpt import SIZES, VOCABULARY, Gpt
    from torch.nn import functional

    with torch.device("cuda"):
        net = Gpt(*SIZES[size][:4])
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    marks: list[Any] = []
    for _ in range(5):
        batch = torch.randint(0, VOCABULARY, (micro, net.context + 1), device="cuda")
        logits = net(batch[:, :-1]) @ net.words.weight.T
        functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        opt.step()
        opt.zero_grad()
        _mark(marks)
    return _told(net, micro * net.context, _median(marks[1:]))


def c_autocast(size: str) -> dict[str, float]:
    """What a careful person writes by hand: autocast, the model and its loss compiled, the fused optimizer."""
    import torch
    from gpt import SIZES, VOCABULARY, Gpt
    from torch.nn import functional

    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        net = Gpt(*SIZES[size][:4])
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    @torch.compile
    def lose(given: Any, wanted: Any) -> Any:
        return functional.cross_entropy((net(given) @ net.words.weight.T).flatten(0, 1), wanted)

    micro = SIZES[size][4]
    marks: list[Any] = []
    for _ in range(14):
        batch = torch.randint(0, VOCABULARY, (micro, net.context + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = lose(batch[:, :-1].contiguous(), batch[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        _mark(marks)
    return _told(net, micro * net.context, _median(marks[3:]))


def c_digest(stop: int) -> dict[str, str]:
    """The bits of parameters and moments after 12 steps; stopped and resumed at `stop`, where that is not 0."""
    import torch

    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        for last in (stop, 12) if stop else (12,):
            run, net, wrapped, opt, data, _ = _begun("124M", 32, folder, save_steps=3)
            for step in run.steps(last, data):
                _learn(step, wrapped, net)
                step.apply(opt, clip=1.0)
            run.close()
        for tensor in (*net.parameters(), *(held[key] for held in opt.state.values() for key in sorted(held))):
            flat = torch.as_tensor(tensor).detach().contiguous().view(-1)
            digest.update(flat.view(torch.uint8).cpu().numpy().tobytes())
    return {"sha": digest.hexdigest()}


def c_saving(size: str) -> dict[str, float]:
    """Steps with saves among them: how much longer the steps around one take than others. DCP saves the same after."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        run, net, wrapped, opt, data, _ = _begun(size, 0, folder, save_steps=10, keep=1)
        took, durable = [], []
        last = time.perf_counter()
        for step in run.steps(30, data):
            _learn(step, wrapped, net)
            step.apply(opt)
            torch.cuda.synchronize()
            took.append(time.perf_counter() - last)
            last = time.perf_counter()
            if step.number in (14, 24):
                run.saves.settle()
                durable.append(sum(took[-5:]) + time.perf_counter() - last)
                last = time.perf_counter()
        usual = statistics.median(took[4:8] + took[26:28])
        state = run.keeping.tensors()
        run.close()
        # After the second save: the first one gets its memory.
        return {
            "ms": usual * 1e3, "stall_ms": max(sum(took[20:24]) - 4 * usual, 0) * 1e3, "durable_s": durable[-1],
            "gb": sum(tensor.nbytes for tensor in state.values()) / 1e9, "dcp_ms": _dcp(state, folder),
        }  # fmt: skip


def _dcp(state: dict[str, Any], folder: str) -> float:
    """Milliseconds for which DCP's asynchronous save blocks, at its best of two."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    stalls = []
    for number in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        waiting = dcp.async_save(dict(state), checkpoint_id=f"{folder}/dcp{number}")
        torch.cuda.synchronize()
        stalls.append(time.perf_counter() - began)
        waiting.result()
        shutil.rmtree(f"{folder}/dcp{number}")
    dist.destroy_process_group()
    return min(stalls) * 1e3


def c_learn() -> dict[str, float]:
    """A model that has something to learn: words that follow words by a rule with chance in it."""
    import numpy as np
    import torch
    from gpt import Gpt

    from falaj.feed.text import Tokens
    from falaj.train.mesh import ProcessMesh
    from falaj.train.options import Options
    from falaj.train.run import Run

    chance = np.random.default_rng(0)
    nexts = chance.integers(0, 4096, (4096, 4))
    words = np.empty(3_000_000, np.uint16)
    words[0] = 0
    picks = chance.integers(0, 4, len(words))
    for at in range(1, len(words)):
        words[at] = nexts[words[at - 1], picks[at]]
    options = Options(save_s=0).said()
    run = Run(options, ProcessMesh.here(options))
    torch.manual_seed(0)
    with torch.device(run.device):
        net = Gpt(4, 1024, 8, 256, vocabulary=4096)
    data = run.data(Tokens(words, 256), batch=64)
    wrapped = run.parallel(net)
    opt = run.adamw(wrapped, lr=6e-4)
    run.schedule(opt, "cosine", steps=400, warmup=40)
    late = []
    from falaj.train.fused_loss import linear_cross_entropy

    for step in run.steps(400, data):
        for batch in step.micro():
            hidden = wrapped(batch["tokens"][:, :-1])
            total, count = linear_cross_entropy(hidden, net.words.weight, batch["tokens"][:, 1:])
            step.backward(total, count)
            if step.number >= 380:
                late.append(float(total.detach() / count))
        step.apply(opt, clip=1.0)
    return {"loss": statistics.mean(late)}


CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    name[2:]: made for name, made in list(globals().items()) if name.startswith("c_")
}

if __name__ == "__main__":
    main()
