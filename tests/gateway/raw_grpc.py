"""ModelInfer by grpcio, with whatever bytes come back."""

from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb


def infer(address: str, headers: dict[str, str], model: str, sequence: int = 0, **more: Any) -> bytes:
    """One call; the answer as it is."""
    return asked(address, headers, model, sequence, **more)[0]


def asked(
    address: str, headers: dict[str, str], model: str, sequence: int = 0, **more: Any
) -> tuple[bytes, dict[str, str]]:
    """The same with the answer's metadata."""
    request = pb.ModelInferRequest(model_name=model, **more)
    if sequence:
        request.parameters["sequence_id"].int64_param = sequence
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=bytes,
        )
        made, told = call.with_call(request, metadata=tuple(headers.items()), timeout=20)
        return made, dict((*told.initial_metadata(), *told.trailing_metadata()))
