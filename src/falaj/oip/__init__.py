"""The Open Inference Protocol, as KServe and Triton clients speak it: tensors, REST, gRPC, and a gateway's hop.

What lives here: bytes to requests and answers to bytes, and the servers of connections. What does not: models, and who
may call them.
"""
