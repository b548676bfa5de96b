"""Serving on one GPU: rows a second through the engine and the torch runtime against the raw compiled model's best.

    python bench/serve_gpu.py               encoders of 5M and 100M parameters in bf16 (three minutes on an H200)
    python bench/serve_gpu.py 5m-fp16       those that are named; 100m-fp16, too
    python bench/serve_gpu.py --cpu         a smoke test without a device

Needs torch, numpy and a CUDA device, and nothing else. Raw is `torch.compile` on tensors that lie on the device and
stay there, at the batch size where it is fastest. Served goes through queue, batcher, pinned copies and answers, from
as many closed loops as are said. Both are measured in turns. A table for people, then one last line of JSON.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import _dynamo as dynamo  # noqa: E402

from falaj.core.errors import FalajError  # noqa: E402
from falaj.core.model_manifest import ModelManifest, TensorSpec  # noqa: E402
from falaj.infer.engine import InferenceEngine  # noqa: E402
from falaj.infer.records import ModelConfig, ModelRuntime, ServerConfig  # noqa: E402
from falaj.infer.runtimes import load_runtime  # noqa: E402
from falaj.infer.runtimes.model_code import import_callable  # noqa: E402
from falaj.oip.tensors import InferenceRequest, InferenceResponse, InputTensor  # noqa: E402

CPU = "--cpu" in sys.argv
DEVICE = "cpu" if CPU else "cuda"
TOKENS = 32
MODELS = {
    "5m-bf16": {"width": 256, "layers": 6, "words": 1024, "heads": 4, "dtype": "bfloat16"},
    "100m-bf16": {"width": 768, "layers": 12, "words": 20000, "heads": 12, "dtype": "bfloat16"},
    "5m-fp16": {"width": 256, "layers": 6, "words": 1024, "heads": 4, "dtype": "float16"},
    "100m-fp16": {"width": 768, "layers": 12, "words": 20000, "heads": 12, "dtype": "float16"},
}
if CPU:
    MODELS = {"tiny": {"width": 64, "layers": 2, "words": 256, "heads": 4, "dtype": "float32"}}
MOST_ROWS = 64 if CPU else 8192
CELL_S, WARM_S, RAW_S, ROUNDS = (0.3, 0.3, 0.2, 2) if CPU else (1.5, 1.0, 0.6, 3)
CODE = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, flow):
        rows, tokens, width = flow.shape
        parts = self.mix(self.norm(flow)).view(rows, tokens, 3, self.heads, width // self.heads)
        asked, known, held = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(asked, known, held)
        flow = flow + self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return flow + self.narrow(F.gelu(self.wide(self.norm_out(flow))))


class Encoder(nn.Module):
    def __init__(self, parameters):
        super().__init__()
        width, layers, words, heads = (int(parameters[name]) for name in ("width", "layers", "words", "heads"))
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(32, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 8)

    def forward(self, tokens):
        flow = self.words(tokens) + self.places
        for block in self.blocks:
            flow = block(flow)
        return self.head(self.norm(flow).mean(1)).float()
"""
BARS: dict[str, dict[str, Any]] = {}


def main() -> None:
    """The models that were named, or all of them."""
    began = time.time()
    if CPU:
        torch.set_num_threads(1)
    chosen = [name for name in sys.argv[1:] if not name.startswith("--")] or list(MODELS)[:2]
    print(f"{torch.cuda.get_device_name() if not CPU else 'cpu'}, torch {torch.__version__}", flush=True)
    ratios = {}
    for name in chosen:
        ratios[name] = asyncio.run(measure(name, began))
    worst = min(ratios.values())
    if not CPU:
        BARS["gpu_of_raw"] = {"value": round(worst, 4), "bar": 0.9, "ok": worst >= 0.9}
    print(json.dumps({"bench": "serve_gpu", "device": DEVICE, "of_raw": ratios, "bars": BARS}))


async def measure(name: str, began: float) -> float:
    """One model: the raw rate, and the served one in several cells. The ratio is of the cell with enough in flight."""
    how = MODELS[name]
    print(f"\n{name} (at {time.time() - began:.0f} s)", flush=True)
    with tempfile.TemporaryDirectory(prefix="falaj-bench-") as folder:
        module, config = prepared(Path(folder), how)
        raw, best, raw_rate = fastest(module, how["words"])
        at = time.time()
        print(
            f"  raw: {raw_rate:12,.0f} rows/s at {best} rows, {best / raw_rate * 1e3:.2f} ms a batch "
            f"(found at {at - began:.0f} s)",
            flush=True,
        )
        seen: list[ModelRuntime] = []

        def watched(config: ModelConfig) -> ModelRuntime:
            seen.append(load_runtime(config))
            return seen[0]

        engine = InferenceEngine(ServerConfig(), watched)
        await engine.placed(config)
    ways = getattr(seen[0], "chosen", {})
    print(f"  loaded and warm in {time.time() - at:.1f} s; ladder {ways or 'none'}", flush=True)
    await agree(engine, module, how)
    full = max(1, 1 << max(0, (4 * best - 1)).bit_length() >> 8)
    for concurrency, rows in ((1, 1), (64, 1), (256, 1), (64, 4 * full)):
        await cell(engine, how, concurrency, rows, WARM_S)
        rate, batch = await cell(engine, how, concurrency, rows, CELL_S)
        row(concurrency, rows, rate, batch, raw_rate)
    ratio = await rounds(engine, how, full, raw, best)
    await engine.close()
    return ratio


async def rounds(engine: InferenceEngine, how: dict[str, Any], full: int, raw: Callable[[], float], best: int) -> float:
    """Served and raw in turns, 256 at once with enough rows between them for three batches."""
    await cell(engine, how, 256, full, 2 * WARM_S)
    served, bare = [], []
    batch = 0.0
    for _ in range(ROUNDS):
        bare.append(raw())
        rate, batch = await cell(engine, how, 256, full, CELL_S)
        served.append(rate)
    bare_rate, rate = statistics.median(bare), statistics.median(served)
    row(256, full, rate, batch, bare_rate, f"(bar; raw again {bare_rate:,.0f} at {best})")
    return round(rate / bare_rate, 4)


def row(concurrency: int, rows: int, rate: float, batch: float, raw: float, note: str = "") -> None:
    """One line of the table."""
    print(
        f"  {concurrency:4} at once x {rows:3} rows: {rate:12,.0f} rows/s {rate / rows:10,.0f} req/s "
        f"mean batch {batch:7.0f} {rate / raw:6.3f} of raw {note}",
        flush=True,
    )


def prepared(folder: Path, how: dict[str, Any]) -> tuple[Any, ModelConfig]:
    """A model on disk as one is published: code in one folder, weights in the other."""
    code, weights = folder / "code", folder / "model"
    code.mkdir(), weights.mkdir()
    (code / "encoder.py").write_text(CODE)
    parameters = {key: str(value) for key, value in how.items()}
    torch.manual_seed(5)
    module = (
        import_callable("encoder:Encoder", str(code))(parameters)
        .to(getattr(torch, how["dtype"]))
        .eval()
        .requires_grad_(False)
    )
    write(module, weights / "model.safetensors")
    sheet = ModelManifest(
        runtime="torch",
        code="encoder:Encoder",
        inputs=(TensorSpec("tokens", "INT64", (-1, TOKENS)),),
        outputs=(TensorSpec("logits", "FP32", (-1, 8)),),
        most_rows=MOST_ROWS,
        parameters=parameters,
    )
    config = ModelConfig("encoder", "1", str(weights), str(code), sheet=sheet, device=DEVICE, queue=4096)
    return module.to(DEVICE), config


def write(module: Any, path: Path) -> None:
    """Safetensors: a header's length, the header, raw bytes."""
    header, parts, at = {}, [], 0
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for name, one in module.state_dict().items():
        data = one.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": kinds[one.dtype], "shape": list(one.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def fastest(module: Any, words: int) -> tuple[Callable[[], float], int, float]:
    """The raw compiled model: what measures it at its best batch size, that size, and rows a second."""
    loose, tight = (module, module) if CPU else (torch.compile(module), torch.compile(module, dynamic=False))
    rates: dict[int, float] = {}
    rows, found = 8, [0.0, 0.0]
    while rows <= MOST_ROWS and (len(found) < 5 or max(found[-2:]) > 1.01 * max(found[:-2])):
        rates[rows] = rate_of(loose, (rows, words), RAW_S / 3, grows=True)
        found.append(rates[rows])
        rows *= 2
    best = max(rates, key=lambda one: rates[one])
    rates_of = {
        "any size": lambda: rate_of(loose, (best, words), RAW_S, grows=True),
        "this size": lambda: rate_of(tight, (best, words), RAW_S),
    }
    ways = {way: measure() for way, measure in rates_of.items()}
    print("  raw by rows: " + ", ".join(f"{rows}: {rate:,.0f}" for rows, rate in rates.items()), flush=True)
    print("  raw compiled for " + ", ".join(f"{way}: {rate:,.0f}" for way, rate in ways.items()), flush=True)
    way = max(ways, key=lambda one: ways[one])
    return rates_of[way], best, ways[way]


def rate_of(call: Any, size: tuple[int, int], seconds: float, *, grows: bool = False) -> float:
    """Rows a second of a call on tensors that lie on the device. Words are any, as those that are served: a device is
    quicker with rows that are all alike, because it then needs less power."""
    rows, words = size
    tokens = torch.randint(0, words, (rows, TOKENS), dtype=torch.int64, device=DEVICE)
    if grows and not CPU:
        dynamo.maybe_mark_dynamic(tokens, 0)
    with torch.inference_mode():
        for _ in range(3):
            call(tokens)
        wait()
        began, runs = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for _ in range(4):
                call(tokens)
            wait()
            runs += 4
        return rows * runs / (time.perf_counter() - began)


def wait() -> None:
    """Until the device is done."""
    if not CPU:
        torch.cuda.synchronize()


async def cell(
    engine: InferenceEngine, how: dict[str, Any], concurrency: int, rows: int, seconds: float
) -> tuple[float, float]:
    """Closed loops, each asking again when it was answered: rows a second, and rows of a mean batch."""
    ended = asyncio.get_running_loop().create_future()
    tokens = np.random.default_rng(1).integers(0, how["words"], (rows, TOKENS), np.int64).tobytes()
    given = (InputTensor("tokens", "INT64", (rows, TOKENS), tokens),)
    until = time.perf_counter() + seconds
    done = flying = 0
    before = counts(engine)
    began = time.perf_counter()

    def answered(answer: InferenceResponse | FalajError) -> None:
        nonlocal done, flying
        flying -= 1
        if isinstance(answer, FalajError):
            if not ended.done():
                ended.set_exception(answer)
            return
        done += 1
        if time.perf_counter() < until:
            ask()
        elif not flying and not ended.done():
            ended.set_result(None)

    def ask() -> None:
        nonlocal flying
        flying += 1
        engine.submit(InferenceRequest("encoder", "1", given), answered)

    for _ in range(concurrency):
        ask()
    await ended
    took = time.perf_counter() - began
    ran, runs = (now - then for now, then in zip(counts(engine), before, strict=True))
    return done * rows / took, ran / max(1, runs)


def counts(engine: InferenceEngine) -> tuple[int, int]:
    """Rows that were run, and runs."""
    found = engine.statistics("encoder")["model_stats"][0]
    return int(found["inference_count"]), int(found["execution_count"])


async def agree(engine: InferenceEngine, module: Any, how: dict[str, Any]) -> None:
    """What is served is what the module says, for odd sizes too."""
    for rows in (1, 3, 50):
        tokens = np.random.default_rng(rows).integers(0, how["words"], (rows, TOKENS), np.int64)
        answer = asyncio.get_running_loop().create_future()
        engine.submit(
            InferenceRequest("encoder", "1", (InputTensor("tokens", "INT64", tokens.shape, tokens.tobytes()),)),
            answer.set_result,
        )
        found = await answer
        if isinstance(found, FalajError):
            raise found
        with torch.inference_mode():
            wanted = module(torch.from_numpy(tokens).to(DEVICE)).cpu().numpy()
        np.testing.assert_allclose(found.outputs[0].data, wanted, atol=0.05, rtol=0.05)


if __name__ == "__main__":
    main()
