"""A model that is a function: `def name(inputs, parameters)`, arrays by name in and out; or a class that is made once
with the folder of its model and then called so. Always in a cage.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from falaj.core.sheet import Sheet
from falaj.infer.records import Arrays, ModelConfig, Runtime
from falaj.infer.runtimes import cage
from falaj.infer.runtimes.code import code_folder, failed, imported
from falaj.infer.runtimes.specs import batches, given_back, needed
from falaj.infer.runtimes.verify import Files


class FunctionRuntime:
    """The function, inside its cage."""

    platform = "python_function"
    parallel = isolated = False

    def __init__(self, function: Any, sheet: Sheet, size_bytes: int) -> None:
        self._function: Any = function
        self.inputs, self.outputs = needed(sheet, "python")
        self.batches, self.size_bytes = batches(sheet, self.inputs, self.outputs), size_bytes

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        given = {spec.name: one for spec, one in zip(self.inputs, inputs, strict=True)}
        with failed("the function failed", "run it on the same inputs"):
            made = self._function(given, dict(parameters))
            found = [made[spec.name] for spec in self.outputs]
        return given_back(found, self.outputs, "function")

    def close(self) -> None:
        """Nothing is held."""


def opened(config: ModelConfig, sheet: Sheet, files: Files) -> Runtime:
    """The function of the model's code, in a process of its own."""
    needed(sheet, "python")
    if not cage.inside:
        return cage.Cage(config, sheet)
    private = Path.cwd()
    folder = code_folder(config, private / "code")
    sys.path.insert(0, folder)  # the process is its own: it may import whenever it likes
    function = imported(sheet.code, folder)
    if isinstance(function, type):
        model = files.folder
        if files.digests:
            model = private / "model"
            files.copy(model)
        with failed(f"{sheet.code[:100]} cannot be made", "run it alone"):
            function = function(model)
    return FunctionRuntime(function, sheet, files.size_bytes)
