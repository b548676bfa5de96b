"""Fusion: operations that follow one another made one, saved so that no server does it again at every start."""

from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid
from falaj.optimize.graphs import load, save
from falaj.optimize.strangers import guarded


def fuse(file: Path, out: Path) -> Path:
    """ONNX Runtime's own fusions, as far as they hold on any machine: layouts for one CPU are left to the server."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 3
    with guarded("fusing"):
        ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return save(load(out), out)


def fuse_transformer(file: Path, out: Path) -> Path:
    """Attention, layer norms and GELUs of a transformer as one operation each, where the graph shows them."""
    model = load(file)
    if not any(one.op_type == "LayerNormalization" for one in model.graph.node):
        raise Invalid("it is no transformer", "")
    before = len(model.graph.node)
    with guarded("fusing a transformer"):
        from onnxruntime.transformers.optimizer import optimize_model

        made: Any = optimize_model(str(file), model_type="bert", num_heads=0, hidden_size=0, opt_level=0)
    if len(made.model.graph.node) >= before:
        raise Invalid("nothing was found to fuse", "")
    return save(made.model, out)
