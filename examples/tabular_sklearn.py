"""A classifier of rows with scikit-learn.

    python examples/tabular_sklearn.py
    falaj jobs submit examples/tabular_sklearn.py --outputs model=model:demo/tumours --cpus 2

As a job it reads the table of its input `data` (with a column `target`), where it has one.
"""

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from falaj import worker
from falaj.train.estimators import fit_estimator


def rows() -> object:
    """The job's table, or one that comes with scikit-learn."""
    if "data" in worker.attempt().inputs:
        return "data"
    known = load_breast_cancer()
    return dict(zip(known.feature_names, known.data.T, strict=True)) | {"target": known.target}


if __name__ == "__main__":
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    made = fit_estimator(model, rows(), target="target", valid=0.2)
    print(f"accuracy {made.metrics['accuracy']:.3f}, AUC {made.metrics['auc']:.3f}; the model lies in {made.folder}")
    if "data" not in worker.attempt().inputs:  # the bound holds for the built-in table only
        assert made.metrics["auc"] > 0.95
