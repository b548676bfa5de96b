"""What a definition file imports: entities, sources, views, what is computed on demand, services.

from falaj.features import Entity, Feature, Source, col, view

customer = Entity("fraud/customer", keys={"customer_id": "string"}, subject="customer_id")
spend = view("fraud/spend", customer, Source("dataset:fraud/transactions", event="at"), ttl="90d",
             features=[Feature("amount", "float64", col("amount_fils") / 100), Feature("city", "string")])
"""

from falaj.asof.expressions import coalesce, col, concat, lit, seconds_between, when
from falaj.features.definition_parts import Entity, Feature, Request, Rule, Source, Window
from falaj.features.service_definitions import OnDemand, Service, on_demand
from falaj.features.view_definitions import Picked, View, shared, view

__all__ = [
    "Entity",
    "Feature",
    "OnDemand",
    "Picked",
    "Request",
    "Rule",
    "Service",
    "Source",
    "View",
    "Window",
    "coalesce",
    "col",
    "concat",
    "lit",
    "on_demand",
    "seconds_between",
    "shared",
    "view",
    "when",
]
