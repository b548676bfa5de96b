"""Fusion: operations that follow one another made one, saved so that no server does it again at every start."""

from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid
from falaj.optimize.onnx_files import load_model, save_model
from falaj.optimize.untrusted_code import wrap_user_errors


def fuse_operations(file: Path, out: Path) -> Path:
    """ONNX Runtime's own fusions, as far as they hold on any machine: layouts for one CPU are left to the server."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 3
    with wrap_user_errors("fusing"):
        ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return save_model(load_model(out), out)


def fuse_transformer(file: Path, out: Path) -> Path:
    """Attention, layer norms and GELUs of a transformer as one operation each, where the graph shows them."""
    model = load_model(file)
    if not any(node.op_type == "LayerNormalization" for node in model.graph.node):
        raise Invalid("it is no transformer", "")
    node_count = len(model.graph.node)
    with wrap_user_errors("fusing a transformer"):
        from onnxruntime.transformers.optimizer import optimize_model

        optimized: Any = optimize_model(str(file), model_type="bert", num_heads=0, hidden_size=0, opt_level=0)
    if len(optimized.model.graph.node) >= node_count:
        raise Invalid("nothing was found to fuse", "")
    return save_model(optimized.model, out)
