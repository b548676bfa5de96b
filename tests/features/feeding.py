"""A process to be killed: fills or pushes, and says what was acknowledged."""

import sys
import time
from pathlib import Path

import falaj

DEFINITIONS = """
from falaj.features import Entity, Feature, Service, Source, Window, view

one = Entity("f/one", keys={"id": "int64"})
plain = view("f/plain", one, Source("dataset:f/rows", event="at"),
             features=[Feature("x", "float64"), Feature("t", "string")])
sums = view("f/sums", one, Source("dataset:f/rows", event="at"), features=[Feature("x", "float64")],
            windows=[Window("sum", "x", "30d"), Window("count", over="7d")])
pushed = view("f/pushed", one, Source("push", event="at"), features=[Feature("x", "float64")],
              windows=[Window("sum", "x", "30d"), Window("count", over="30d")])
all_of_it = Service("f/all", [plain, sums, pushed])
"""


def main(home: str, what: str) -> None:
    here = falaj.connect(home)
    if what == "fill":
        here.features.materialize("service:f/all")
        print("done", flush=True)
        return
    for number in range(10_000):
        rows = [{"id": number % 7, "at": round(time.time() * 1e6), "x": float(number)}]
        here.features.push("view:f/pushed", rows)
        print(number, flush=True)


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), sys.argv[2])
