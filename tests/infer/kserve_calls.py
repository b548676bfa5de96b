"""Run by the Python that has KServe: asks a server everything its client can ask, and prints what came back."""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput


async def main(url: str, token: str) -> dict[str, object]:
    auth = {"Authorization": f"Bearer {token}"}
    rows = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    told: dict[str, object] = {}
    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=1)) as client:
        told["live"] = await client.is_server_live(url)
        told["ready"] = await client.is_server_ready(url)
        told["model"] = await client.is_model_ready(url, "mlp", headers=auth)
        told["other"] = await client.is_model_ready(url, "none", headers=auth)
        for binary in (False, True):
            for outputs in (None, [RequestedOutput("y", parameters={"binary_data": binary})]):
                one = InferInput(name="x", shape=[2, 32], datatype="FP32")
                one.set_data_from_numpy(rows, binary_data=binary)
                asked = InferRequest("mlp", [one], request_id="r-9", request_outputs=outputs)
                answer = await client.infer(url, asked, model_name="mlp", headers=dict(auth))
                found = answer.outputs[0].as_numpy()
                told[f"{binary} {outputs is not None}"] = [
                    answer.id,
                    list(found.shape),
                    found.ravel().tolist(),
                ]
        texts = [
            InferInput(name="in_bytes", shape=[1, 2], datatype="BYTES", data=["ä", "b"]),
            InferInput(name="in_int64", shape=[1, 1], datatype="INT64", data=[7]),
            InferInput(name="in_bool", shape=[1, 1], datatype="BOOL", data=[True]),
            InferInput(name="in_fp32", shape=[1, 1], datatype="FP32", data=[0.5]),
        ]
        answer = await client.infer(url, InferRequest("echo", texts), model_name="echo", headers=dict(auth))
        told["echo"] = {one.name: one.data for one in answer.outputs}
        for name, headers in (("none", auth), ("mlp", {})):
            try:
                await client.infer(url, {"inputs": []}, model_name=name, headers=dict(headers))
            except Exception as error:  # noqa: BLE001 - whatever the client makes of it is what is looked at
                told[f"error {name}"] = str(error)
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
