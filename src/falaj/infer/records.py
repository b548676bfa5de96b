"""What an inference server is told, and what it asks of a runtime."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from falaj.core.model_manifest import ModelManifest, TensorSpec

Arrays = Sequence[Any]
"""numpy arrays, and lists of bytes for BYTES, in the order of the model's inputs or outputs."""


@dataclass(frozen=True, slots=True)
class FeatureConfig:
    """Keys in, features out: what stands before a model that was trained on a feature service."""

    online: str
    """The address of the online store."""
    plan: Mapping[str, Any]
    """An asof.records.ServicePlan as plain values."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a model is given for a feature that is not there; without one the request fails and says which."""
    isolate: bool = True
    """Refuse Python functions where this machine cannot isolate them; else warn. In a sandbox always refuse."""
    keys: str = field(default="", repr=False)
    """The keys of the spaces in the plan, sealed for the replicas of the endpoint; none for a store in the clear."""
    space_keys: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """These keys opened (asof/space_keys.py): space to version to key."""


@dataclass(frozen=True, slots=True)
class CountingConfig:
    """How what a model is given and answers is counted, where it has a profile."""

    flush_s: float = 10.0
    """How often what was counted is told."""
    share: float = 0.005
    """How much of the server's CPU time it may take; 0: nothing is counted."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One version of one model, on disk."""

    name: str
    version: str
    folder: str
    code: str = ""
    """The folder of its code, for torch and python models."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 by path, as approved and signed: the bytes that are loaded must be these. Empty: not checked."""
    sheet: ModelManifest | None = None
    """Instead of the one in the folder."""
    features: FeatureConfig | None = None
    device: str = "cpu"
    threads: int = 1
    """Threads of one run; 0: as many as there are cores."""
    queue: int = 1024
    """Requests that may wait; the next one is told when to come again."""
    delay_ms: float = 0.0
    """How long a request may wait for others although the runtime is free; 0 is right nearly always."""
    timeout_s: float = 30.0
    """A run that takes longer is a hung runtime."""
    cache: int = 0
    """Answers kept for requests that come again, by what they hold."""
    idle_s: float = 60.0
    """How long the state of a sequence is kept."""
    watch: CountingConfig = CountingConfig()


@dataclass(frozen=True, slots=True)
class RequestLogConfig:
    """Which requests are written down, and where."""

    folder: str
    sample: float = 0.01
    most_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One server."""

    models: tuple[ModelConfig, ...] = ()
    repository: str = ""
    """A folder of models (NAME/VERSION/…) that clients may load and unload by name; empty: none can be."""
    memory_bytes: int = 0
    """What all models may take together; those used least recently make room. 0: no bound."""
    http: str = ""
    grpc: str = ""
    hop: str = ""
    """Where to listen for each, host:port (port 0: any); nowhere when empty."""
    keys: tuple[str, ...] = ()
    """SHA-256 (hex) of the bearer tokens that may call; empty: nobody may, unless `open`."""
    open: bool = False
    """Anybody may call; only on loopback."""
    hop_key: str = ""
    hop_fd: int = -1
    """A listening socket that this process inherited and takes instead of opening `hop`; -1: none."""
    hop_host: str = ""
    """Where others reach that socket."""
    cert: str = ""
    key: str = ""
    """PEM files; without them only loopback is listened on."""
    journal: RequestLogConfig | None = None
    body_bytes: int = 64 << 20
    grpc_with: str = "own"
    """`own`, or `grpcio` for the library's server."""
    drain_s: float = 30.0
    name: str = "falaj"


class ModelRuntime(Protocol):
    """A model in memory. `run` may be called from any thread, by one at a time unless `parallel`."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    platform: str
    """As Triton's metadata name it: onnxruntime_onnx, pytorch_…, …"""
    size_bytes: int
    """What it takes of memory, about."""
    parallel: bool
    isolated: bool
    """True when it runs in a process of its own: a run may be given up and the process ended (`reset`)."""

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch. UserCodeFailed when the model breaks, Unavailable when its process is gone."""
        ...

    def close(self) -> None: ...


LoadRuntime = Callable[[ModelConfig], ModelRuntime]
