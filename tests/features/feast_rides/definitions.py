from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, FileSource, PushSource, RequestSource, ValueType
from feast.on_demand_feature_view import on_demand_feature_view
from feast.types import Array, Bool, Float32, Float64, Int32, Int64, String, UnixTimestamp

driver = Entity(name="driver", join_keys=["driver_id"], value_type=ValueType.INT64, description="who drives")
customer = Entity(name="customer", join_keys=["customer_id"], value_type=ValueType.STRING)

trips = FileSource(
    name="trips",
    path="data/trips.parquet",
    timestamp_field="event_timestamp",
    created_timestamp_column="created",
    field_mapping={"conv": "conv_rate"},
)
hourly = FeatureView(
    name="driver_hourly",
    entities=[driver],
    ttl=timedelta(days=1),
    schema=[
        Field(name="conv_rate", dtype=Float32, description="how many calls became trips"),
        Field(name="acc_rate", dtype=Float64),
        Field(name="trips", dtype=Int64),
        Field(name="city", dtype=String),
        Field(name="active", dtype=Bool),
        Field(name="last_at", dtype=UnixTimestamp),
        Field(name="scores", dtype=Array(Float32)),
        Field(name="rank", dtype=Int32),
    ],
    source=trips,
    tags={"team": "driving"},
    owner="amal@example.com",
    description="Hourly figures of drivers",
)
pairs_source = FileSource(name="pairs", path="data/pairs.parquet", timestamp_field="event_timestamp")
pairs = FeatureView(
    name="pairs",
    entities=[driver, customer],
    ttl=timedelta(0),
    schema=[
        Field(name="rides_together", dtype=Int64),
        Field(name="driver_id", dtype=Int64),
        Field(name="customer_id", dtype=String),
    ],
    source=pairs_source,
    online=False,
)
pushed = PushSource(
    name="pushed", batch_source=FileSource(name="pushed_batch", path="data/pushed.parquet", timestamp_field="at")
)
fresh = FeatureView(name="driver_fresh", entities=[driver], schema=[Field(name="speed", dtype=Float64)], source=pushed)
world = FeatureView(
    name="world",
    entities=[],
    schema=[Field(name="fuel", dtype=Float64)],
    source=FileSource(name="fuel", path="data/fuel.parquet", timestamp_field="event_timestamp"),
)
asked = RequestSource(name="asked", schema=[Field(name="price", dtype=Float64)])


@on_demand_feature_view(
    sources=[hourly, asked], schema=[Field(name="price_rate", dtype=Float64)], mode="python", singleton=False
)
def priced(inputs):
    return {"price_rate": [p * a for p, a in zip(inputs["price"], inputs["acc_rate"], strict=True)]}


@on_demand_feature_view(sources=[hourly], schema=[Field(name="double_rate", dtype=Float64)], mode="pandas")
def doubled(df):
    import pandas as pd

    out = pd.DataFrame()
    out["double_rate"] = df["acc_rate"] * 2
    return out


scorer = FeatureService(
    name="scorer",
    features=[
        hourly[["conv_rate", "acc_rate"]],
        pairs,
        priced,
        fresh.with_name("other_driver").with_join_key_map({"driver_id": "other_driver_id"}),
    ],
    owner="amal@example.com",
    description="What the model asks for",
)
