"""Gradient boosting with XGBoost, in its own words: a regression that stops when it gets no better.

python examples/tabular_xgboost.py
falaj jobs submit examples/tabular_xgboost.py --outputs model=model:demo/diabetes --cpus 2 --checkpoint every=10s
"""

from sklearn.datasets import load_diabetes

from falaj.train.boosters import Boosting
from falaj.train.estimators import fit_estimator

if __name__ == "__main__":
    params = {"objective": "reg:squarederror", "max_depth": 3, "eta": 0.05, "subsample": 0.7, "colsample_bytree": 0.7}
    plan = Boosting("xgboost", params, rounds=400, chunk=20, early=30, seed=7)
    made = fit_estimator(plan, load_diabetes(return_X_y=True), valid=0.25)
    print(f"{made.metrics} after {made.model.num_boosted_rounds()} rounds; the model lies in {made.folder}")
    assert made.metrics["valid_rmse"] < 75
