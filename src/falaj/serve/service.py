"""The desk of endpoints: one class, written in the parts it inherits."""

from falaj.serve.batches import Batches
from falaj.serve.endpoints import Endpoints
from falaj.serve.loads import Loads
from falaj.serve.rollouts import Rollouts


class Serve(Rollouts, Loads, Endpoints, Batches):
    """Endpoints: models that answer, by revision and share of traffic, with replicas that come and go."""
