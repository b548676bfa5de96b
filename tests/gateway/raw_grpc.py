"""ModelInfer by grpcio, with whatever bytes come back."""

from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb


def infer(address: str, headers: dict[str, str], model: str, sequence: int = 0, **more: Any) -> bytes:
    """One call; the answer as it is, and its initial metadata are not looked at."""
    request = pb.ModelInferRequest(model_name=model, **more)
    if sequence:
        request.parameters["sequence_id"].int64_param = sequence
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=bytes,
        )
        made: bytes = call(request, metadata=tuple(headers.items()), timeout=20)
        return made
