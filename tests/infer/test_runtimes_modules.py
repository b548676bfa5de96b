"""torch: modules with safetensors, exported programs, and what neither may do."""

import contextlib
import ctypes
import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from falaj.core.errors import CorruptData, FalajError, Invalid, UserCodeFailed
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.records import ModelConfig, ModelRuntime
from falaj.infer.runtimes import isolated_runtime, load_runtime
from falaj.infer.runtimes.model_code import import_callable
from falaj.infer.runtimes.safetensors_weights import read_tensors
from falaj.train.weights import write_weights
from tests.infer import models
from tests.infer.running import ask_of, asked, engine_of, on_loop

CODE = """
from torch import nn
class Net(nn.Module):
    def __init__(self, wide=16):
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(8, wide), nn.Linear(wide, 2), nn.Dropout(0.5)
    def forward(self, x):
        y = self.last(self.drop(self.first(x).relu()))
        return {"y": y, "best": y.argmax(1)}
def build(parameters):
    return Net(int(parameters["wide"]))
def plain():
    return Net()
def nothing():
    return 1
class InPlace(Net):
    def forward(self, x):
        x += 1
        return [x, x.argmax(1)]
class Odd(Net):
    def forward(self, x):
        class Mine(Exception): pass
        if x.sum() > 1e3:
            raise Mine("of its own kind")
        if x.sum() < -1e3:
            raise SystemExit(3)
        return super().forward(x)
class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 2)
    def forward(self, x):
        return self.first(x)
"""
SPECS = {
    "inputs": (TensorSpec("x", "FP32", (-1, 8)),),
    "outputs": (TensorSpec("y", "FP32", (-1, 2)), TensorSpec("best", "INT64", (-1,))),
}
X = np.random.default_rng(2).standard_normal((5, 8)).astype(np.float32)
X.flags.writeable = False  # as what came from the wire


def code(folder: Path) -> str:
    (folder / "code").mkdir(parents=True, exist_ok=True)
    (folder / "code" / "net.py").write_text(CODE)
    return str(folder / "code")


def built(folder: Path, name: str = "plain") -> nn.Module:
    torch.manual_seed(3)
    made = import_callable(f"net:{name}", code(folder))()
    assert isinstance(made, nn.Module)
    made.eval()
    write_weights(made, folder / "model" / "model.safetensors")
    return made


def loaded(folder: Path, name: str, device: str = "cpu", files: Any = (), **said: Any) -> ModelRuntime:
    sheet = ModelManifest("torch", code=f"net:{name}", **{**SPECS, **said})
    return load_runtime(ModelConfig("m", "1", str(folder / "model"), code(folder), dict(files), sheet, device=device))


@pytest.mark.parametrize(("name", "parameters"), [("plain", {}), ("Net", {}), ("build", {"wide": "16"})])
def test_answers_like_the_module(tmp_path: Path, name: str, parameters: dict[str, str]) -> None:
    wanted = built(tmp_path)(torch.from_numpy(np.array(X)))
    runtime = loaded(tmp_path, name, parameters=parameters, files=models.digests(tmp_path / "model"))
    y, best = runtime.run([X], {})
    np.testing.assert_array_equal(y, wanted["y"].detach().numpy())
    np.testing.assert_array_equal(best, wanted["best"].numpy())
    assert (runtime.platform, runtime.isolated) == ("pytorch_safetensors", False)


@pytest.mark.slow
def test_in_a_cage_of_its_own_too(tmp_path: Path) -> None:
    wanted = built(tmp_path)(torch.from_numpy(np.array(X)))["y"].detach().numpy()
    runtime = loaded(tmp_path, "plain", parameters={"process": "own"})
    assert runtime.isolated
    np.testing.assert_array_equal(runtime.run([X], {})[0], wanted)
    runtime.close()


def test_what_was_sent_is_not_written_to(tmp_path: Path) -> None:
    built(tmp_path)
    before = X.copy()
    outputs = (TensorSpec("y", "FP32", (-1, 8)), TensorSpec("best", "INT64", (-1,)))
    np.testing.assert_array_equal(loaded(tmp_path, "InPlace", outputs=outputs).run([X], {})[0], X + 1)
    np.testing.assert_array_equal(X, before)


def test_half_precision_travels_as_its_bytes(tmp_path: Path) -> None:
    module = import_callable("net:Half", code(tmp_path))().to(torch.bfloat16)
    write_weights(module, tmp_path / "model" / "model.safetensors")
    given_ = torch.from_numpy(np.array(X)).to(torch.bfloat16)
    runtime = loaded(
        tmp_path,
        "Half",
        inputs=(TensorSpec("x", "BF16", (-1, 8)),),
        outputs=(TensorSpec("y", "BF16", (-1, 2)),),
    )
    (y,) = runtime.run([given_.view(torch.uint16).numpy()], {})
    np.testing.assert_array_equal(y, module(given_).detach().view(torch.uint16).numpy())


@pytest.mark.parametrize(
    ("name", "said", "error", "match"),
    [
        ("nothing", {}, Invalid, "Module"),
        ("missing", {}, Invalid, "no net:missing"),
        ("Half", {}, UserCodeFailed, "weights"),
        ("plain", {"inputs": ()}, Invalid, "must say"),
        ("plain", {"inputs": (TensorSpec("x", "BYTES", (-1,)),)}, Invalid, "BYTES"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, name: str, said: Any, error: type[Exception], match: str) -> None:
    built(tmp_path)
    with pytest.raises(error, match=match):
        loaded(tmp_path, name, **said)


@on_loop
async def test_an_error_of_its_own_kind_fails_one_request_and_nothing_else(tmp_path: Path) -> None:
    built(tmp_path)
    runtime: Any = loaded(tmp_path, "Odd")
    engine, threads = await engine_of(runtime, sheet=ModelManifest("torch", **SPECS)), threading.active_count()
    for bad, said in ((1e4, "Mine: of its own kind"), (-1e4, "SystemExit: 3")) * 2:
        with pytest.raises(UserCodeFailed, match=said):
            await asked(engine, ask_of(np.full((1, 8), bad)))
        assert (await asked(engine, ask_of(np.ones((1, 8))))).outputs[0].shape == (1, 2)
    assert threading.active_count() <= threads + 1
    await engine.close()


def test_outputs_that_are_not_those_of_the_sheet(tmp_path: Path) -> None:
    built(tmp_path)
    outputs = (TensorSpec("y", "FP64", (-1, 2)), TensorSpec("best", "INT64", (-1,)))
    with pytest.raises(UserCodeFailed, match="FP64"):
        loaded(tmp_path, "plain", outputs=outputs).run([X], {})
    with pytest.raises(UserCodeFailed, match="did not run"):
        loaded(tmp_path, "plain").run([X[:, :3]], {})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_never_another_device_than_asked_for(tmp_path: Path) -> None:
    built(tmp_path)
    for device in ("cuda", "cuda:1", "abacus"):
        with pytest.raises(Invalid, match=device):
            loaded(tmp_path, "plain", device)


def test_two_models_whose_modules_have_one_name(tmp_path: Path) -> None:
    built(tmp_path / "one")
    built(tmp_path / "two")
    first = loaded(tmp_path / "one", "plain")
    changed = CODE.replace(".relu()", ".sigmoid()")
    (tmp_path / "two" / "code" / "net.py").write_text(changed)
    sheet = ModelManifest("torch", code="net:plain", **SPECS)  # type: ignore[arg-type]
    folder, code_folder = (str(tmp_path / "two" / name) for name in ("model", "code"))
    second = load_runtime(ModelConfig("m", "2", folder, code_folder, sheet=sheet))
    assert not np.array_equal(first.run([X], {})[0], second.run([X], {})[0])


@pytest.mark.slow
def test_an_exported_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = built(tmp_path)
    (tmp_path / "exported").mkdir()
    rows = torch.export.Dim("rows", min=1, max=4096)
    program = torch.export.export(module, (torch.zeros(2, 8),), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "exported" / "model.pt2")
    config = ModelConfig("m", "1", str(tmp_path / "exported"), files=models.digests(tmp_path / "exported"))
    runtime = load_runtime(config)
    assert isinstance(runtime, isolated_runtime.IsolatedRuntime)
    assert runtime.inputs == (TensorSpec("x", "FP32", (-1, 8)),)
    assert [(one.datatype, one.shape) for one in runtime.outputs] == [("FP32", (-1, 2)), ("INT64", (-1,))]
    wanted = module(torch.from_numpy(np.array(X)))
    y, best = runtime.run([X], {})
    np.testing.assert_allclose(y, wanted["y"].detach().numpy(), rtol=1e-5)
    np.testing.assert_array_equal(best, wanted["best"].numpy())
    runtime.close()
    monkeypatch.setattr(isolated_runtime, "is_inside", True)  # As in that process; another one each time takes seconds.
    named = ModelManifest("export", outputs=SPECS["outputs"])
    assert load_runtime(ModelConfig("m", "1", config.folder, sheet=named)).outputs == SPECS["outputs"]
    (tmp_path / "exported" / "model.pt2").write_bytes(b"nothing")
    with pytest.raises(CorruptData):
        load_runtime(config)
    with pytest.raises(Invalid, match="does not take"):
        load_runtime(ModelConfig("m", "1", config.folder))


class Gadget:
    """What a pickle among a program's weights may do."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"import os, pathlib; pathlib.Path({self.path!r}).write_text(str(dict(os.environ)))",)


@pytest.mark.slow
def test_what_a_program_runs_as_it_is_loaded_stays_in_its_cage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_TOKEN", "secret-token")
    program = torch.export.export(torch.nn.Linear(8, 2), (torch.zeros(2, 8),))
    torch.export.save(program, tmp_path / "whole.pt2")
    (evil := tmp_path / "evil").mkdir()
    gadget, stolen = io.BytesIO(), tmp_path / "stolen"
    torch.save(Gadget(str(stolen)), gadget)
    with ZipFile(tmp_path / "whole.pt2") as old, ZipFile(evil / "model.pt2", "w") as new:
        for entry in old.namelist():
            data = old.read(entry).replace(b'"use_pickle": false', b'"use_pickle": true')
            new.writestr(entry, gadget.getvalue() if "/weights/weight_" in entry else data)
    words = [sys.executable, "-c", "import sys, torch; torch.export.load(sys.argv[1])", str(evil / "model.pt2")]
    subprocess.run(words, check=False, capture_output=True)
    assert "secret-token" in stolen.read_text()  # This is what torch does with it.
    stolen.unlink()
    with pytest.raises(FalajError):
        load_runtime(ModelConfig("m", "1", str(evil)))
    assert not (confined() and stolen.exists())
    assert not stolen.exists() or "secret-token" not in stolen.read_text()


def confined() -> bool:
    """Whether this kernel has Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(444, None, 0, 1)) > 0


def _file(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        _file(b"{"),
        _file([]),
        _file({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        _file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)),
        _file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, bytes(4)),
        _file({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}, bytes(4)),
        _file({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}, bytes(4)),
        _file({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)),
    ],
)
def test_weights_that_lie(data: bytes) -> None:
    with pytest.raises(CorruptData):
        read_tensors(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_weights_or_corrupt(data: bytes) -> None:
    for one in (data, _file(data)):
        with contextlib.suppress(CorruptData):
            read_tensors(one)


def test_weights_at_odd_places(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [1, 1], "data_offsets": [1, 5]},
        "none": {"dtype": "F32", "shape": [0, 3], "data_offsets": [5, 5]},
        "__metadata__": {"format": "pt"},
    }
    found = read_tensors(_file(header, b"\x07" + np.float32(1.5).tobytes()))
    assert (found["a"].item(), found["b"].item(), tuple(found["none"].shape)) == (7, 1.5, (0, 3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiles", ["no", "auto"])
def test_graphs_answer_like_the_module(tmp_path: Path, compiles: str) -> None:
    module = built(tmp_path)
    runtime: Any = loaded(tmp_path, "plain", "cuda", parameters={"torch.compile": compiles}, most_rows=64)
    for rows in (1, 3, 17, 64, 200):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
        y, best = runtime.run([x], {})
        wanted = module(torch.from_numpy(x))
        np.testing.assert_allclose(y, wanted["y"].detach().numpy(), atol=1e-3)
        assert best.shape == (rows,)
    assert runtime.most_rows <= 64
    runtime.close()


@pytest.mark.slow
def test_a_machine_with_torch_and_numpy_alone_can_serve() -> None:
    """As on a GPU node: nothing of the doors, no other runtime."""
    text = """
import sys
import falaj.infer.engine, falaj.infer.runtimes.cuda_graphs, falaj.infer.runtimes.torch_modules
strange = {"msgspec", "httptools", "uvloop", "hpack", "onnxruntime", "pyarrow", "cryptography"} & set(sys.modules)
assert not strange, strange
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=100)
