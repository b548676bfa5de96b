"""Gradient boosting with LightGBM: kill it when you like, and start it again; the model is the same to the last byte.

python examples/tabular_lightgbm.py
falaj jobs submit examples/tabular_lightgbm.py --outputs model=model:demo/tumours --cpus 2 --checkpoint every=10s
"""

from lightgbm import LGBMClassifier
from sklearn.datasets import load_breast_cancer

from falaj.train.estimators import fit_estimator

if __name__ == "__main__":
    model = LGBMClassifier(n_estimators=200, num_leaves=15, subsample=0.8, subsample_freq=1, colsample_bytree=0.7)
    # Twenty-five rounds under one seed; a checkpoint is taken between such chunks, where there is a folder for it.
    made = fit_estimator(model, load_breast_cancer(return_X_y=True), valid=0.2, chunk=25, early=40)
    print(f"{made.metrics}; the model lies in {made.folder}")
    assert made.metrics["valid_binary_logloss"] < 0.3
