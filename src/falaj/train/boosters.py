"""XGBoost and LightGBM in chunks of rounds, each with a seed of its own: killed at any moment and started again, they
end with the same bytes as if nothing had happened, rows and columns drawn by chance included.

The booster stays in memory over all chunks; what it draws from is made anew at the start of each, so that one that was
read from a checkpoint goes on exactly as one that was never away. The same bytes need the same number of threads.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from falaj import worker
from falaj.core.errors import Invalid
from falaj.feed.permutation import mix_seeds
from falaj.train.estimators import (
    EstimatorRows,
    FittedEstimator,
    build_manifest_file,
    count_cores,
    write_file,
    write_files,
)

_MAX_CHECKPOINTS = 2
_INEXACT_BOOSTERS = {"dart", "rf", "random_forest", "gblinear", "goss"}
"""These change what was built before, or count rounds for themselves: they are trained in one piece."""
_LARGER_IS_BETTER = ("auc", "ndcg", "map", "pre")
_SEED_PARAMS = ("bagging_seed", "feature_fraction_seed", "extra_seed", "drop_seed", "objective_seed")
_INEXACT_PARAMS = ("linear_tree", "use_quantized_grad", "pos_bagging_fraction", "neg_bagging_fraction")
ScoresByName = dict[str, float]


@dataclass(frozen=True, slots=True)
class Boosting:
    """What to train, in the library's words: `Boosting("xgboost", {"objective": "binary:logistic"}, rounds=500)`."""

    library: str
    params: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 100
    chunk: int = 50
    """Rounds under one seed; part of what the model is, like the seed."""
    early: int = 0
    """End after so many rounds in which the valid rows got no better; the best is kept."""
    seed: int = 0
    save_s: float = 10.0
    """A checkpoint at the end of a chunk, but not more often than this."""

    def __post_init__(self) -> None:
        if self.library not in ("lightgbm", "xgboost") or min(self.rounds, self.chunk) < 1:
            raise Invalid(f"{self.library} cannot be boosted {self.rounds} rounds", "lightgbm or xgboost, 1 or more")

    @property
    def exact(self) -> bool:
        """Whether it can go on from a checkpoint to the same bytes."""
        kind_params = ("boosting", "boosting_type", "booster", "data_sample_strategy")
        kinds = {str(self.params.get(param_name)) for param_name in kind_params}
        return not kinds & _INEXACT_BOOSTERS and not any(self.params.get(param_name) for param_name in _INEXACT_PARAMS)

    @property
    def stride(self) -> int:
        """The chunk, made to end where LightGBM draws its rows anew."""
        bagging_interval = max(1, int(self.params.get("bagging_freq", self.params.get("subsample_freq", 1))))
        return -(-self.chunk // bagging_interval) * bagging_interval


def plan_boosting(estimator: Any, y: Any, **overrides: Any) -> Boosting:
    """The plan behind an LGBM* or XGB* object: its parameters, without what only its wrapper knows."""
    if isinstance(estimator, Boosting):
        return estimator
    library, params = type(estimator).__module__.partition(".")[0], dict(estimator.get_params())
    settings = {
        "rounds": params.pop("n_estimators", None) or 100,
        "early": params.pop("early_stopping_rounds", None) or 0,
    }
    settings |= overrides | {"seed": params.pop("random_state", None) or overrides.get("seed", 0)}
    params = {name: value for name, value in params.items() if value is not None and name not in _WRAPPER_PARAMS}
    classes = len(np.unique(y)) if hasattr(estimator, "predict_proba") else 0
    if classes > 2:
        params |= {"num_class": classes, "objective": _OBJECTIVES[library][2]}
    params.setdefault("objective", _OBJECTIVES[library][bool(classes)])
    return Boosting(library, params, **settings)


def train_booster(
    plan: Boosting, rows: EstimatorRows, valid: EstimatorRows | None = None, *, folder: Path
) -> FittedEstimator:
    """Train as planned, on from the newest checkpoint that is whole; the model lies in `folder` in its own format."""
    labels = np.unique(rows.y) if str(plan.params.get("objective")).startswith(("binary", "multi")) else None
    if labels is not None:
        rows = EstimatorRows(rows.x, np.searchsorted(labels, rows.y), rows.columns)
        valid = valid and EstimatorRows(valid.x, np.searchsorted(labels, valid.y), valid.columns)
    boosting_run = _BoostingRun(plan, rows)
    booster = (_train_lightgbm if plan.library == "lightgbm" else _train_xgboost)(boosting_run, rows, valid)
    boosting_run.close()
    best_rounds = boosting_run.best_round + 1 if plan.early and valid else plan.rounds
    if plan.library == "lightgbm":
        file, model = "model.txt", _encode_model(booster, best_rounds)
        booster.best_iteration = best_rounds  # what it answers here is what it will answer there
    else:
        booster = booster[:best_rounds] if best_rounds < booster.num_boosted_rounds() else booster
        file, model = "model.ubj", bytes(booster.save_raw("ubj"))
    summary = {"library": plan.library, "columns": rows.columns, "rounds": best_rounds, "metrics": boosting_run.scores}
    summary |= {"params": dict(plan.params), "seed": plan.seed, "chunk": plan.chunk}
    summary |= {"labels": labels.tolist()} if labels is not None else {}
    encoded_summary = json.dumps(summary, indent=1, default=str).encode()
    write_files(
        folder, {file: model, "model.json": encoded_summary, **build_manifest_file(plan.library, file, rows.columns)}
    )
    return FittedEstimator(booster, dict(boosting_run.scores), folder)


def predict_rows(booster: Any, plan: Boosting, x: Any) -> Any:
    """What it says of rows, as whoever serves it will."""
    if plan.library == "lightgbm":
        return booster.predict(x, num_threads=count_cores())
    return booster.inplace_predict(x, validate_features=False)


def list_labels(plan: Boosting, y: Any) -> list[Any]:
    """The classes it tells apart, in its order; none where it foretells numbers."""
    classes = str(plan.params.get("objective")).startswith(("binary", "multi"))
    return np.unique(y).tolist() if classes else []


class _BoostingRun:
    """The way of one booster through its chunks: seeds, checkpoints, what others ask, and when it gets no better."""

    def __init__(self, plan: Boosting, rows: EstimatorRows) -> None:
        self.plan, self.here = plan, worker.attempt()
        self._chunk_rounds, self._is_resumable = plan.stride, plan.exact
        identity = [plan.library, dict(plan.params), plan.chunk, plan.seed, plan.early, _fingerprint_rows(rows)]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
        # Several boosters of a job, its folds perhaps, each find their own.
        self._folder = self.here.checkpoints / f"booster-{digest}" if self.here.checkpoints and plan.exact else None
        self.first, self.model, self.scores, self.best, self.best_round = 0, b"", ScoresByName(), 0.0, -1
        self._saved_at = time.monotonic()
        for checkpoint, model in self._iter_checkpoints():
            self.first, self.model, self.scores = checkpoint["round"], model, checkpoint["scores"]
            self.best, self.best_round = checkpoint["best"], checkpoint["best_round"]
            break
        self.over = self._is_finished(self.first - 1)
        if self._folder:
            self.here.asked()  # from here on a wish to stop is heard

    def seed(self, round_number: int) -> int | None:
        """The seed of the chunk that this round begins; nothing inside a chunk."""
        chunk, inside = divmod(round_number, self._chunk_rounds)
        return None if inside or (chunk and not self._is_resumable) else mix_seeds(self.plan.seed, chunk) & 0x3FFFFFFF

    def after(
        self, round_number: int, scores: ScoresByName, serialize_model: Any, *, larger_is_better: bool = False
    ) -> bool:
        """A round is done; whether it was the last. `serialize_model` gives the bytes so far; the last score
        decides."""
        if scores:
            value = list(scores.values())[-1] * (-1 if larger_is_better else 1)
            if self.best_round < 0 or value < self.best:
                self.best, self.best_round = value, round_number
            self.scores = scores
        self.over = self._is_finished(round_number)
        if (round_number + 1) % self._chunk_rounds == 0 or self.over:
            self._finish_chunk(round_number + 1, serialize_model)
        return self.over

    def close(self) -> None:
        """Say the last figures."""
        self.here.progress(self.plan.rounds, self.plan.rounds)

    def _is_finished(self, round_number: int) -> bool:
        stale = self.plan.early and self.best_round >= 0 and round_number - self.best_round >= self.plan.early
        return bool(stale) or round_number + 1 >= self.plan.rounds

    def _finish_chunk(self, rounds_done: int, serialize_model: Any) -> None:
        if not self.over:
            self.here.progress(rounds_done, self.plan.rounds)
        for name, value in self.scores.items():
            self.here.metric(name, value, rounds_done)
        if self._folder is None or self.over:
            return  # nothing to save: whoever wants our place just ends us
        request = self.here.asked()
        if request or time.monotonic() - self._saved_at >= self.plan.save_s:
            self._save_checkpoint(self._folder, rounds_done, serialize_model())
        if request == "stop":
            self.here.yield_place()

    def _save_checkpoint(self, folder: Path, rounds_done: int, model: bytes) -> None:
        started_at = time.monotonic()
        facts = {"round": rounds_done, "scores": self.scores, "best": self.best, "best_round": self.best_round}
        facts["sha256"] = hashlib.sha256(model).hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{rounds_done:09d}"
        write_file(path, json.dumps(facts).encode() + b"\n" + model)
        for old_path in sorted(folder.glob("[0-9]*"))[:-_MAX_CHECKPOINTS]:
            old_path.unlink(missing_ok=True)
        self._saved_at = time.monotonic()
        self.here.checkpointed(rounds_done, str(path), self._saved_at - started_at)

    def _iter_checkpoints(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Checkpoints whose bytes are what they were, the newest first."""
        for path in sorted(self._folder.glob("[0-9]*"), reverse=True) if self._folder else ():
            head, _, model = path.read_bytes().partition(b"\n")
            try:
                facts = json.loads(head)
                is_intact = hashlib.sha256(model).hexdigest() == facts["sha256"]
            except (ValueError, KeyError, TypeError):
                facts, is_intact = {}, False
            if not is_intact:
                self.here.note(f"checkpoint {path.name} is broken: the one before it is used")
                continue
            yield facts, model


def _train_xgboost(boosting_run: _BoostingRun, rows: EstimatorRows, valid: EstimatorRows | None) -> Any:
    xgboost, plan = import_module("xgboost"), boosting_run.plan
    names = list(rows.columns) or None
    params = {"nthread": count_cores()} | {
        "nthread" if name == "n_jobs" else name: plan.params[name] for name in plan.params
    }
    data = xgboost.DMatrix(rows.x, rows.y, feature_names=names, nthread=params["nthread"])
    evals = [(xgboost.DMatrix(valid.x, valid.y, feature_names=names), "valid")] if valid else []
    booster = xgboost.Booster(params, [data, *(matrix for matrix, _ in evals)])
    if boosting_run.model:
        booster.load_model(bytearray(boosting_run.model))
    method = params.get("tree_method", "auto")
    for round_number in range(boosting_run.first, plan.rounds if not boosting_run.over else 0):
        if (seed := boosting_run.seed(round_number)) is not None:
            # Another method and back: the tree builder, and with it what columns are drawn from, is made anew.
            if plan.exact:
                booster.set_param({"tree_method": "hist" if method == "approx" else "approx", "seed": 0})
                booster.save_config()
            booster.set_param({"tree_method": method, "seed": seed} if plan.exact else {"seed": seed})
        booster.update(data, round_number)
        scores = _parse_scores(booster.eval_set(evals, round_number)) if evals else {}
        last_metric = next(reversed(scores), "").removeprefix("valid_")
        larger_is_better = last_metric.startswith(_LARGER_IS_BETTER) and last_metric != "mape"
        if boosting_run.after(
            round_number, scores, lambda: bytes(booster.save_raw("ubj")), larger_is_better=larger_is_better
        ):
            break
    return booster


def _train_lightgbm(boosting_run: _BoostingRun, rows: EstimatorRows, valid: EstimatorRows | None) -> Any:
    lightgbm, plan = import_module("lightgbm"), boosting_run.plan
    params: dict[str, Any] = {"num_threads": count_cores(), "verbosity": -1}
    params |= {_LIGHTGBM_ALIASES.get(name, name): value for name, value in plan.params.items()}
    params["num_iterations"] = plan.rounds
    if not params.get("force_row_wise") and not params.get("force_col_wise"):
        # Left to itself it takes what a stopwatch says, and sums in another order each time.
        has_few_columns = np.shape(rows.x)[1] < params["num_threads"]
        params["force_row_wise" if has_few_columns else "force_col_wise"] = True
    dataset_options = {"params": params, "free_raw_data": False}
    data = lightgbm.Dataset(rows.x, rows.y, feature_name=list(rows.columns) or "auto", **dataset_options)
    valid_sets = [lightgbm.Dataset(valid.x, valid.y, reference=data, **dataset_options)] if valid else None

    def start_round(env: Any) -> None:
        if (seed := boosting_run.seed(env.iteration)) is not None:
            fraction = params.get("bagging_fraction", 1.0)
            if params.get("bagging_freq"):
                # Another part and back: what rows are drawn from is made anew. About the same: half would be copied.
                env.model.reset_parameter({**params, "bagging_fraction": 0.99 * fraction})
            env.model.reset_parameter(params | {name: seed + index for index, name in enumerate(_SEED_PARAMS)})

    def end_round(env: Any) -> None:
        evaluations = env.evaluation_result_list or []
        scores = {f"{name}_{metric}": float(value) for name, metric, value, _ in evaluations}
        larger_is_better = bool(evaluations and evaluations[-1][3])
        if boosting_run.after(
            env.iteration, scores, lambda: _encode_model(env.model, -1), larger_is_better=larger_is_better
        ):
            raise lightgbm.callback.EarlyStopException(env.iteration, evaluations)

    setattr(start_round, "before_iteration", True)  # noqa: B010 - a mark that the library looks for
    initial_model = lightgbm.Booster(model_str=boosting_run.model.decode()) if boosting_run.model else None
    if boosting_run.over:
        return initial_model
    # Kept as it was trained: by itself the library would write it down and read it back once more.
    return lightgbm.train(
        params, data, valid_sets=valid_sets, valid_names=["valid"] if valid_sets else None, init_model=initial_model,
        callbacks=[start_round, end_round], keep_training_booster=True,
    ).free_dataset()  # fmt: skip


def _fingerprint_rows(rows: EstimatorRows) -> list[Any]:
    """Enough of the rows to know them again: shape, columns, all that is said of them, a thousand of them."""
    sample = np.ascontiguousarray(rows.x[:: max(1, len(rows.x) // 1000)])
    targets = np.ascontiguousarray(rows.y)
    return [
        np.shape(rows.x),
        rows.columns,
        *(hashlib.sha256(array.tobytes()).hexdigest() for array in (sample, targets)),
    ]


def _encode_model(booster: Any, rounds: int) -> bytes:
    text: str = booster.model_to_string(num_iteration=rounds)
    return text.encode()


def _parse_scores(line: str) -> ScoresByName:
    """XGBoost's line of figures: `[3]	valid-auc:0.9	valid-logloss:0.2`."""
    pairs = (field_text.rpartition(":") for field_text in line.split("\t")[1:])
    return {name.replace("-", "_", 1): float(value) for name, _, value in pairs}


_OBJECTIVES = {
    "lightgbm": ("regression", "binary", "multiclass"),
    "xgboost": ("reg:squarederror", "binary:logistic", "multi:softprob"),
}
_LIGHTGBM_ALIASES = {
    "subsample": "bagging_fraction", "sub_row": "bagging_fraction", "bagging": "bagging_fraction",
    "subsample_freq": "bagging_freq", "boosting_type": "boosting",
    "n_jobs": "num_threads", "nthread": "num_threads", "nthreads": "num_threads", "num_thread": "num_threads",
}  # fmt: skip
"""Its other words for what we must know of."""
_WRAPPER_PARAMS = ("missing", "enable_categorical", "class_weight", "importance_type", "callbacks", "feature_types")
