"""Prints the figures of tests/shape/naming.py beside their limits: `python -m tests.shape.report`."""

from tests.shape.naming import MEASURES
from tests.shape.test_naming import LIMITS


def main() -> None:
    print(f"{'':62}{'measured':>10}{'limit':>10}{'goal':>10}")
    for measure in MEASURES:
        bound = LIMITS[measure.name]
        print(f"{measure.name:62}{measure.compute():>10}{bound['limit']:>10}{bound['goal']:>10}")


if __name__ == "__main__":
    main()
