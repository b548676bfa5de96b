"""Function models in their cage: what they answer, what they may break, and what is kept from them."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from falaj.core.errors import CorruptData, Unavailable, UserCodeFailed
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.records import ModelConfig, ModelRuntime
from falaj.infer.runtimes import isolated_runtime, load_runtime
from tests.infer import models

CODE = """
import os, socket, sys, time
import numpy as np
from helper import twice

seen = []

def double(inputs, parameters):
    seen.append(1)
    return {"y": twice(inputs["x"])}

def tricks(inputs, parameters):
    what = parameters.get("do", "")
    if what == "raise":
        raise ValueError("no\\nmore")
    if what == "own":
        class Mine(Exception): pass
        raise Mine("an error of a kind of its own")
    if what == "exit":
        sys.exit(3)
    if what == "die":
        os._exit(9)
    if what == "hang":
        time.sleep(600)
    if what == "type":
        return {"y": inputs["x"].astype("f8")}
    if what == "shape":
        return {"y": inputs["x"][:, :1]}
    if what == "nothing":
        return {}
    if what == "lie":
        os.write(int(sys.argv[1]), b"\\xff" * 64)
    if what == "pid":
        return {"y": inputs["x"] * 0 + os.getpid()}
    return {"y": inputs["x"]}

def spy(inputs, parameters):
    import lately
    ask = inputs["ask"].ravel()[0].decode()
    if ask == "environment":
        found = "\\n".join(f"{k}={v}" for k, v in sorted(os.environ.items()))
    elif ask == "files":
        found = " ".join(sorted(os.listdir("/proc/self/fd")))
    elif ask == "connect":
        try:
            with socket.create_connection(("127.0.0.1", int(parameters["port"])), 2):
                found = "connected"
        except OSError as error:
            found = f"refused {error}"
    else:
        try:
            found = open(ask).read()
        except OSError as error:
            found = type(error).__name__
    return {"told": np.array([[found.encode()]], object)}

class Adder:
    def __init__(self, folder):
        self.add = float((folder / "add.txt").read_text())
    def __call__(self, inputs, parameters):
        return {"y": inputs["x"] + np.float32(self.add)}

def broken():
    return 1

def large(inputs, parameters):
    return {"y": np.ones((1 << 28,), "f8")}
"""
X, Y = TensorSpec("x", "FP32", (-1, 4)), TensorSpec("y", "FP32", (-1, 4))
Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[ModelRuntime] = []
    code, folder = tmp_path / "code", tmp_path / "model"
    code.mkdir()
    folder.mkdir()
    (code / "mine.py").write_text(CODE)
    (code / "helper.py").write_text("def twice(x):\n    return x * 2\n")
    (code / "lately.py").write_text("")
    (folder / "add.txt").write_text("2.5")

    def start(name: str, inputs: Any = (X,), outputs: Any = (Y,), files: Any = (), **parameters: str) -> ModelRuntime:
        sheet = ModelManifest("python", code=f"mine:{name}", inputs=inputs, outputs=outputs, parameters=parameters)
        config = ModelConfig("m", "1", str(folder), str(code), files=dict(files), sheet=sheet, timeout_s=20)
        made.append(load_runtime(config))
        return made[-1]

    yield start
    for one in made:
        one.close()


def ones(rows: int = 2) -> list[Any]:
    return [np.ones((rows, 4), np.float32)]


def test_answers_and_says_what_it_is(make: Make) -> None:
    runtime = make("double")
    assert (runtime.platform, runtime.isolated, runtime.inputs) == ("python_function", True, (X,))
    x = np.array([[1, np.nan, -0.0, np.inf]], np.float32)
    (y,) = runtime.run([x], {})
    np.testing.assert_array_equal(y, x * 2)
    assert np.asarray(runtime.run([np.zeros((0, 4), np.float32)], {})[0]).shape == (0, 4)


def test_a_class_is_made_once_with_its_model(make: Make, tmp_path: Path) -> None:
    assert make("Adder").run(ones(), {})[0].tolist() == [[3.5] * 4] * 2
    files = {**models.digests(tmp_path / "model")}
    assert make("Adder", files=files).run(ones(), {})[0].tolist() == [[3.5] * 4] * 2


def test_only_approved_code_is_imported(make: Make, tmp_path: Path) -> None:
    code = tmp_path / "code"
    files = {f"code:{name}": digest for name, digest in models.digests(code).items()}
    files |= models.digests(tmp_path / "model")
    assert make("double", files=files).run(ones(), {})[0][0, 0] == 2
    (code / "helper.py").write_text("def twice(x):\n    return x * 3\n")
    with pytest.raises(CorruptData, match=r"helper\.py"):
        make("double", files=files)


@pytest.mark.parametrize(
    ("do", "match"),
    [
        ("raise", "ValueError: no"),
        ("type", "float64"),
        ("shape", r"\[2, 1\]"),
        ("nothing", "KeyError"),
        ("own", "of its own"),
        ("exit", "SystemExit: 3"),
    ],
)
def test_what_its_code_does_wrong_is_said(make: Make, do: str, match: str) -> None:
    runtime = make("tricks")
    with pytest.raises(UserCodeFailed, match=match):
        runtime.run(ones(), {"do": do})
    assert runtime.run(ones(), {})[0].tolist() == ones()[0].tolist()


@pytest.mark.parametrize("do", ["die", "lie"])
def test_a_fall_fails_one_run_and_the_next_is_answered(make: Make, do: str) -> None:
    runtime = make("tricks")
    with pytest.raises(Unavailable, match="ended in the middle"):
        runtime.run(ones(), {"do": do})
    assert runtime.run(ones(), {})[0].tolist() == ones()[0].tolist()


def test_killed_between_runs(make: Make) -> None:
    runtime = make("tricks")
    pid = int(runtime.run(ones(1), {"do": "pid"})[0][0, 0])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unavailable):
        runtime.run(ones(), {})
    assert int(runtime.run(ones(1), {"do": "pid"})[0][0, 0]) != pid


def test_a_hung_run_ends_when_it_is_reset(make: Make) -> None:
    runtime = make("tricks")
    found: list[Exception] = []

    def hang() -> None:
        try:
            runtime.run(ones(), {"do": "hang"})
        except Unavailable as error:
            found.append(error)

    process = runtime._process
    thread = threading.Thread(target=hang)
    thread.start()
    until = time.monotonic() + 20
    while thread.is_alive() and time.monotonic() < until:  # a reset may come before the run
        runtime.reset()
        thread.join(0.2)
    assert not thread.is_alive()
    assert len(found) == 1
    assert process.poll() is not None
    assert runtime.run(ones(), {})[0].shape == (2, 4)


def test_a_run_has_its_time(make: Make) -> None:
    runtime = make("tricks")
    runtime._timeout_s = 0.2
    with pytest.raises(Unavailable, match="within"):
        runtime.run(ones(), {"do": "hang"})
    runtime._timeout_s = 20
    assert runtime.run(ones(), {})[0].shape == (2, 4)


def test_nothing_is_handed_down(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FALAJ_TOKEN", "secret-token")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.set_inheritable(True)
        runtime = make("spy", (TensorSpec("ask", "BYTES", (-1, 1)),), (TensorSpec("told", "BYTES", (-1, 1)),))
        assert "secret-token" not in spied(runtime, "environment")
        assert len(spied(runtime, "files").split()) == 5  # three, the socket, and the folder that is listed
        assert "refused" in spied(runtime, "connect", port=str(listening.getsockname()[1]))
    (tmp_path / "secret.txt").write_text("secret")
    assert spied(runtime, str(tmp_path / "secret.txt")) == "PermissionError"
    assert spied(runtime, "/etc/shadow") == "PermissionError"
    assert spied(runtime, f"/proc/{os.getpid()}/environ") == "PermissionError"
    assert spied(runtime, str(tmp_path / "model" / "add.txt")) == "2.5"


def test_memory_has_a_bound(make: Make) -> None:
    runtime = make("large", memory_bytes=str(1 << 30), outputs=(TensorSpec("y", "FP64", (-1,)),))
    with pytest.raises((UserCodeFailed, Unavailable)):
        runtime.run(ones(), {})


@pytest.mark.parametrize(("text", "match"), [("import nowhere", "nowhere"), ("import os; os._exit(4)", "ended with 4")])
def test_code_that_cannot_begin(make: Make, tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "code" / "mine.py").write_text(text)
    with pytest.raises(UserCodeFailed, match=match):
        make("double")


def test_one_that_falls_as_it_begins_is_not_begun_for_ever(make: Make, tmp_path: Path) -> None:
    runtime = make("tricks")
    (tmp_path / "code" / "mine.py").write_text("import os; os._exit(4)")
    with pytest.raises(Unavailable, match="middle"):
        runtime.run(ones(), {"do": "die"})
    with pytest.raises(UserCodeFailed, match="ended with 4"):
        runtime.run(ones(), {})
    with pytest.raises(Unavailable, match="as soon as"):
        runtime.run(ones(), {})


TEXTS = st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=4), st.lists, max_leaves=8)
TENSORS = st.tuples(
    st.sampled_from(["<f4", "|O", "|u1", "(9,)f4", "V8", "O", ""]) | st.text(max_size=3),
    st.lists(st.integers(-2, 5) | st.integers(), max_size=3) | TEXTS,
    st.integers(-1, 40) | TEXTS,
)


@given(st.lists(TENSORS | TEXTS, max_size=3) | TEXTS, st.binary(max_size=80))
def test_whatever_a_process_writes_is_arrays_or_refused(tensors: Any, body: bytes) -> None:
    for text in (json.dumps({"tensors": tensors}).encode(), body):
        here, there = socket.socketpair()
        with here, there:
            there.sendall(len(text).to_bytes(4, "little") + text + body)
            there.shutdown(socket.SHUT_WR)
            with contextlib.suppress(*isolated_runtime.BROKEN_PROCESS_ERRORS):
                isolated_runtime.receive_message(here)


@given(
    st.lists(
        arrays(st.sampled_from(["<f4", "|b1", "<i8", "<u2"]), array_shapes(min_dims=0, max_dims=3, min_side=0))
        | st.lists(st.binary(max_size=9), max_size=6).map(lambda one: np.array([*one, b""], object)),
        max_size=3,
    )
)
def test_arrays_come_out_as_they_went_in(given_: list[Any]) -> None:
    here, there = socket.socketpair()
    with here, there:
        isolated_runtime.send_message(here, {"parameters": {"a": 1}}, given_)
        told, found = isolated_runtime.receive_message(there)
    assert told == {"parameters": {"a": 1}}
    assert [(one.dtype, one.shape, repr(one.tolist())) for one in found] == [
        (one.dtype, one.shape, repr(one.tolist())) for one in given_
    ]


def spied(runtime: ModelRuntime, ask: str, **parameters: str) -> str:
    (told,) = runtime.run([np.array([[ask.encode()]], object)], parameters)
    return str(told[0, 0].decode())
