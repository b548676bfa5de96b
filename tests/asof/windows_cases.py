"""Random rows and windows over them, mean to the edges: ties, nulls, NaN, both zeros, moments before 1970."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from falaj.asof.records import Window
from falaj.asof.window_aggregation import infer_output_type
from tests.asof.windows_oracle import Row

TYPES = {"f": "float64", "g": "float32", "i": "int64", "b": "bool", "t": "time", "s": "string"}
HOWS = {
    "f": ("count", "sum", "mean", "min", "max", "distinct", "last"),
    "g": ("sum", "mean", "min", "max", "last"),
    "i": ("sum", "mean", "min", "max", "distinct", "last"),
    "b": ("sum", "min", "last"),
    "t": ("min", "max", "last"),
    "s": ("count", "distinct", "last"),
}
MOMENTS = st.one_of(st.integers(-40, 40), st.integers(-400, 400), st.sampled_from([-(1 << 55), 1 << 55]))
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 0.1, -0.1, 1e300, 5e-324]),
    st.floats(-100, 100),
)
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "f": FLOATS,
    "g": st.floats(width=32),
    "i": st.one_of(st.integers(-3, 3), st.integers(-(1 << 58), 1 << 58)),
    "b": st.booleans(),
    "t": st.integers(-5, 5),
    "s": st.sampled_from(["", "a", "é", "b" * 40, "مرحبا"]),
}
BITS = np.iinfo(np.int64)


@st.composite
def rows(draw: st.DrawFn, keys: int = 3, most: int = 25) -> list[Row]:
    count = draw(st.integers(0, most))
    cells = st.fixed_dictionaries({name: st.one_of(st.none(), cell) for name, cell in CELLS.items()})
    return [
        Row(draw(st.integers(0, keys - 1)), event := draw(MOMENTS), event + draw(st.integers(-3, 30)), seq, draw(cells))
        for seq in range(count)
    ]


@st.composite
def windows(draw: st.DrawFn, most: int = 8) -> tuple[Window, ...]:
    kinds = [("", "count"), *((of, how) for of, hows in HOWS.items() for how in hows)]
    picked = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=most))
    out = []
    for number, (of, how) in enumerate(picked):
        hop = draw(st.sampled_from([1, 5, 7, 20]))
        over = hop + draw(st.integers(0, 60))
        kind = infer_output_type(how, TYPES.get(of, ""))
        out.append(Window(f"w{number}", how, of, over, hop, kind, draw(st.integers(1, 4)) if how == "last" else 0))
    return tuple(out)
