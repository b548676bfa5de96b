"""The servers that users would pick instead, each run by its own Python: serve_peers.py WHICH MODEL PORT [GRPC_PORT].

Every one holds the same ONNX model in ONNX Runtime with one thread, under the name `m`, and is set up as its makers say
one gets the most out of one core: no worker processes beside the server where that can be said.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

try:
    from litserve import LitAPI
except ImportError:
    LitAPI = object
try:
    from mlserver import MLModel
except ImportError:
    MLModel = object


class Ml(MLModel):  # type: ignore[misc]
    """MLServer finds the class of a model by name, too."""

    async def load(self) -> bool:
        """Load the model."""
        self.run = session(os.environ["BENCH_MODEL"])
        self.made = [one.name for one in self.run.get_outputs()]
        return True

    async def predict(self, payload: Any) -> Any:
        """One request."""
        from mlserver.codecs import NumpyCodec
        from mlserver.types import InferenceResponse

        outputs = self.run.run(None, {one.name: NumpyCodec.decode_input(one) for one in payload.inputs})
        made = [NumpyCodec.encode_output(name, value) for name, value in zip(self.made, outputs, strict=True)]
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=made)


class Lit(LitAPI):  # type: ignore[misc]
    """LitServe's worker is a process that finds its class by name: it must stand here."""

    def setup(self, device: str) -> None:
        """Load the model."""
        del device
        self.run = session(os.environ["BENCH_MODEL"])
        self.given = self.run.get_inputs()[0]

    def predict(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request."""
        kind = np.int64 if "int64" in self.given.type else np.float32
        return {"y": self.run.run(None, {self.given.name: np.asarray(request["data"], kind)})[0].tolist()}


def main() -> None:
    """Run the one that is named until it is ended."""
    which, model, *ports = sys.argv[1:]
    os.dup2(2, 1)  # Nobody reads our output: a log of requests would fill the pipe, and the server would stand still.
    RUN[which](model, *map(int, ports))


def session(model: str) -> Any:
    """The model, and the name of its input."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def mlserver(model: str, port: int, grpc: int) -> None:
    """MLServer without parallel workers, its fastest setting for small models."""
    from mlserver import MLServer, ModelSettings, Settings

    os.environ["BENCH_MODEL"] = model
    settings = Settings(
        host="127.0.0.1", http_port=port, grpc_port=grpc, metrics_port=grpc + 1, parallel_workers=0, debug=False
    )

    async def go() -> None:
        await MLServer(settings).start([ModelSettings(name="m", implementation="serve_peers.Ml")])

    asyncio.run(go())


def kserve(model: str, port: int, grpc: int) -> None:
    """KServe's Python server."""
    from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

    class Onnx(Model):
        def __init__(self) -> None:
            super().__init__("m")
            self.run = session(model)
            self.made = [one.name for one in self.run.get_outputs()]
            self.ready = True

        def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> InferResponse:
            outputs = self.run.run(None, {one.name: one.as_numpy() for one in payload.inputs})
            made = []
            for name, value in zip(self.made, outputs, strict=True):
                one = InferOutput(name=name, shape=list(value.shape), datatype="FP32")
                one.set_data_from_numpy(value, binary_data=False)
                made.append(one)
            return InferResponse(response_id=payload.id or "1", model_name="m", infer_outputs=made)

    server = ModelServer(http_port=port, grpc_port=grpc, workers=1, access_log_format=None)
    for name in ("kserve.trace", "uvicorn.access"):  # Three lines for each request, unless one says otherwise.
        logging.getLogger(name).disabled = True
    server.start([Onnx()])


def litserve(model: str, port: int, _: int = 0) -> None:
    """LitServe, one worker."""
    import litserve as ls

    os.environ["BENCH_MODEL"] = model
    server = ls.LitServer(Lit(), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, num_api_servers=1, log_level="error", generate_client_file=False)


def bentoml(model: str, port: int, _: int = 0) -> None:
    """BentoML, one worker."""
    import subprocess
    import tempfile

    home = Path(tempfile.mkdtemp(prefix="bento-"))
    (home / "service.py").write_text(BENTO.format(model=model))
    env = {**os.environ, "BENTOML_HOME": str(home), "BENTOML_DO_NOT_TRACK": "true"}
    program = str(Path(sys.executable).parent / "bentoml")
    sys.exit(subprocess.call(
        [program, "serve", "service:Onnx", "--host", "127.0.0.1", "--port", str(port)], cwd=home, env=env
    ))  # fmt: skip


BENTO = """
import bentoml, numpy as np, onnxruntime as ort

@bentoml.service(workers=1, logging={{"access": {{"enabled": False}}}})
class Onnx:
    def __init__(self):
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.run = ort.InferenceSession({model!r}, options, providers=["CPUExecutionProvider"])
        self.given = self.run.get_inputs()[0]

    @bentoml.api
    def predict(self, data: list) -> dict:
        kind = np.int64 if "int64" in self.given.type else np.float32
        return {{"y": self.run.run(None, {{self.given.name: np.asarray(data, kind)}})[0].tolist()}}
"""


def triton(model: str, port: int, grpc: int) -> None:
    """The real Triton, its Python backend over ONNX Runtime, batching as pytriton sets it up."""
    from pytriton.decorators import batch
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    run = session(model)
    given, made = run.get_inputs()[0], run.get_outputs()[0]
    kind = np.int64 if "int64" in given.type else np.float32

    @batch
    def infer(**inputs: Any) -> list[Any]:
        return run.run(None, inputs)

    config = TritonConfig(
        http_port=port, grpc_port=grpc, metrics_port=grpc + 1, http_address="127.0.0.1", grpc_address="127.0.0.1"
    )
    with Triton(config=config) as server:
        server.bind(
            model_name="m",
            infer_func=infer,
            inputs=[Tensor(name=given.name, dtype=kind, shape=tuple(given.shape[1:]))],
            outputs=[Tensor(name=made.name, dtype=np.float32, shape=tuple(made.shape[1:]))],
            config=ModelConfig(max_batch_size=64),
        )
        server.serve()


def grpcaio(model: str, _: int, grpc: int) -> None:
    """grpc.aio by itself around the same model: what one would write by hand."""
    import grpc as library
    from tritonclient.grpc import service_pb2 as pb

    run = session(model)
    given, made = run.get_inputs()[0].name, run.get_outputs()[0].name

    async def infer(request: Any, context: Any) -> Any:
        del context
        rows = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(request.inputs[0].shape)
        value = run.run(None, {given: rows})[0]
        answer = pb.ModelInferResponse(model_name="m", id=request.id, raw_output_contents=[value.tobytes()])
        answer.outputs.add(name=made, datatype="FP32", shape=value.shape)
        return answer

    async def go() -> None:
        server = library.aio.server()
        handler = library.unary_unary_rpc_method_handler(
            infer, pb.ModelInferRequest.FromString, pb.ModelInferResponse.SerializeToString
        )
        service = library.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": handler})
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"127.0.0.1:{grpc}")
        await server.start()
        await server.wait_for_termination()

    import uvloop

    uvloop.run(go())


RUN = {
    "mlserver": mlserver, "kserve": kserve, "litserve": litserve, "bentoml": bentoml, "triton": triton,
    "grpcaio": grpcaio,
}  # fmt: skip

if __name__ == "__main__":
    main()
