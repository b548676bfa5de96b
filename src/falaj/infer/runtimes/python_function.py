"""A model that is a function: `def name(inputs, parameters)`, arrays by name in and out; or a class that is made once
with the folder of its model and then called so. Always in a cage.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from falaj.core.model_manifest import ModelManifest
from falaj.infer.records import Arrays, ModelConfig, ModelRuntime
from falaj.infer.runtimes import isolated_runtime
from falaj.infer.runtimes.model_code import guard_user_code, import_callable, prepare_code_folder
from falaj.infer.runtimes.model_files import ModelFiles
from falaj.infer.runtimes.tensor_specs import can_batch, check_outputs, require_manifest_specs


class FunctionRuntime:
    """The function, inside its cage."""

    platform = "python_function"
    parallel = isolated = False

    def __init__(self, function: Any, manifest: ModelManifest, size_bytes: int) -> None:
        self._function: Any = function
        self.inputs, self.outputs = require_manifest_specs(manifest, "python")
        self.batches, self.size_bytes = can_batch(manifest, self.inputs, self.outputs), size_bytes

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        inputs_by_name = {spec.name: array for spec, array in zip(self.inputs, inputs, strict=True)}
        with guard_user_code("the function failed", "run it on the same inputs"):
            outputs_by_name = self._function(inputs_by_name, dict(parameters))
            outputs = [outputs_by_name[spec.name] for spec in self.outputs]
        return check_outputs(outputs, self.outputs, "function")

    def close(self) -> None:
        """Nothing is held."""


def open_runtime(config: ModelConfig, manifest: ModelManifest, files: ModelFiles) -> ModelRuntime:
    """The function of the model's code, in a process of its own."""
    require_manifest_specs(manifest, "python")
    if not isolated_runtime.is_inside:
        return isolated_runtime.IsolatedRuntime(config, manifest)
    private_folder = Path.cwd()
    folder = prepare_code_folder(config, private_folder / "code")
    sys.path.insert(0, folder)  # the process is its own: it may import whenever it likes
    function = import_callable(manifest.code, folder)
    if isinstance(function, type):
        model_folder = files.folder
        if files.digests:
            model_folder = private_folder / "model"
            files.copy(model_folder)
        with guard_user_code(f"{manifest.code[:100]} cannot be made", "run it alone"):
            function = function(model_folder)
    return FunctionRuntime(function, manifest, files.size_bytes)
