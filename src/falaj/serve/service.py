"""The desk of endpoints: one class, written in the parts it inherits."""

from falaj.serve.batch_operations import BatchOperations
from falaj.serve.endpoint_operations import EndpointOperations
from falaj.serve.rollout_operations import RolloutOperations
from falaj.serve.traffic_operations import TrafficOperations


class ServeService(RolloutOperations, TrafficOperations, EndpointOperations, BatchOperations):
    """Endpoints: models that answer, by revision and share of traffic, with replicas that come and go."""
