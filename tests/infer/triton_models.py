"""Run by the Python that has PyTriton: a real Triton with `echo` of several kinds of tensors, and `one` of one."""

import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

KINDS = {"fp32": np.float32, "int64": np.int64, "bool": np.bool_, "bytes": np.bytes_}


@batch
def echo(**inputs: np.ndarray) -> dict[str, np.ndarray]:
    return {name.replace("in_", "out_"): value for name, value in inputs.items()}


def ends(kinds: dict[str, type]) -> list[list[Tensor]]:
    return [
        [Tensor(name=f"{end}_{name}", dtype=dtype, shape=(-1,)) for name, dtype in kinds.items()]
        for end in ("in", "out")
    ]


if __name__ == "__main__":
    http, grpc, metrics = (int(one) for one in sys.argv[1:])
    config = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics, http_address="127.0.0.1")
    with Triton(config=config) as server:
        for name, kinds in (("one", {"fp32": np.float32}), ("echo", KINDS)):
            server.bind(name, echo, *ends(kinds), config=ModelConfig(max_batch_size=64))
        server.serve()
