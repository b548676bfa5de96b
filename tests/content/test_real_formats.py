"""Models as the real libraries write them, each told for what it is."""

import os
import subprocess
from pathlib import Path

import pytest

from falaj.content.model_formats import inspect_model
from tests.servers import peers
from tests.servers.process import Missing

LIBRARIES = (
    "safetensors==0.8.0", "onnx==1.23.2", "skops==0.16.0", "scikit-learn==1.9.1", "lightgbm==4.7.0",
    "cloudpickle==3.1.2",
)  # fmt: skip
WRITE = """
import os, pathlib, sys
import cloudpickle, joblib, lightgbm, numpy as np, onnx, skops.io
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
def new(name):
    folder = pathlib.Path(sys.argv[1], name)
    folder.mkdir()
    return folder
rows, fraud = np.random.rand(200, 5), np.arange(200) % 2
tree = make_pipeline(StandardScaler(), RandomForestClassifier(n_estimators=5)).fit(rows, fraud)
tensors = {"a": np.ones((3, 4), np.float32), "empty": np.zeros(0, np.float16), "one": np.array(3)}
save_file(tensors, new("safetensors") / "m.safetensors", metadata={"format": "pt"})
shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in "xy"]
weights = numpy_helper.from_array(np.random.rand(64, 64).astype(np.float32), "w")
net = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", shapes[:1], shapes[1:], [weights])
onnx.save(helper.make_model(net), new("onnx") / "m.onnx")
apart = new("onnx, data apart") / "m.onnx"
onnx.save(helper.make_model(net), apart, save_as_external_data=True, location="w.data", size_threshold=0)
skops.io.dump(tree, new("skops") / "m.skops")
skops.io.dump(make_pipeline(FunctionTransformer(os.path.basename)), new("skops!") / "m.skops")
boosted = lightgbm.train({"verbose": -1, "num_iterations": 3}, lightgbm.Dataset(rows, fraud))
boosted.save_model(new("lightgbm") / "m.txt")
np.savez(new("numpy") / "m.npz", a=rows, b=fraud)
np.savez_compressed(new("numpy, packed") / "m.npz", a=np.zeros(1_000_000))
np.save(new("numpy!") / "m.npy", np.array([{}], dtype=object))
joblib.dump(tree, new("joblib!") / "m.bin")
joblib.dump(tree, new("joblib, packed!") / "m.joblib", compress=3)
(new("pickle!") / "m.bin").write_bytes(cloudpickle.dumps(lambda x: x))
"""


@pytest.mark.slow
def test_what_the_real_libraries_write(tmp_path: Path) -> None:
    try:
        python = peers.peer("formats", *LIBRARIES) / "python"
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    done = subprocess.run([python, "-c", WRITE, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for folder in sorted(tmp_path.iterdir()):
        seen = inspect_model(folder)
        told = (seen.format, seen.code_bearing)
        assert told == (folder.name.rstrip("!").partition(",")[0], folder.name.endswith("!")), (folder.name, seen)
    assert len(list(tmp_path.iterdir())) == 12
