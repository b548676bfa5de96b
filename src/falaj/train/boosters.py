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
from falaj.feed.order import mix
from falaj.train.estimators import Fitted, Rows, cores, put_file, put_files, sheet

_KEPT = 2
_INEXACT = {"dart", "rf", "random_forest", "gblinear", "goss"}
"""These change what was built before, or count rounds for themselves: they are trained in one piece."""
_LARGER = ("auc", "ndcg", "map", "pre")
_SEEDS = ("bagging_seed", "feature_fraction_seed", "extra_seed", "drop_seed", "objective_seed")
_INEXACT_WORDS = ("linear_tree", "use_quantized_grad", "pos_bagging_fraction", "neg_bagging_fraction")
Scores = dict[str, float]


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
        words = ("boosting", "boosting_type", "booster", "data_sample_strategy")
        said = {str(self.params.get(word)) for word in words}
        return not said & _INEXACT and not any(self.params.get(word) for word in _INEXACT_WORDS)

    @property
    def stride(self) -> int:
        """The chunk, made to end where LightGBM draws its rows anew."""
        every = max(1, int(self.params.get("bagging_freq", self.params.get("subsample_freq", 1))))
        return -(-self.chunk // every) * every


def planned(estimator: Any, y: Any, **more: Any) -> Boosting:
    """The plan behind an LGBM* or XGB* object: its parameters, without what only its wrapper knows."""
    if isinstance(estimator, Boosting):
        return estimator
    library, known = type(estimator).__module__.partition(".")[0], dict(estimator.get_params())
    said = {"rounds": known.pop("n_estimators", None) or 100, "early": known.pop("early_stopping_rounds", None) or 0}
    said |= more | {"seed": known.pop("random_state", None) or more.get("seed", 0)}
    known = {name: value for name, value in known.items() if value is not None and name not in _OF_WRAPPERS}
    classes = len(np.unique(y)) if hasattr(estimator, "predict_proba") else 0
    if classes > 2:
        known |= {"num_class": classes, "objective": _OBJECTIVES[library][2]}
    known.setdefault("objective", _OBJECTIVES[library][bool(classes)])
    return Boosting(library, known, **said)


def boost(plan: Boosting, rows: Rows, valid: Rows | None = None, *, folder: Path) -> Fitted:
    """Train as planned, on from the newest checkpoint that is whole; the model lies in `folder` in its own format."""
    labels = np.unique(rows.y) if str(plan.params.get("objective")).startswith(("binary", "multi")) else None
    if labels is not None:
        rows = Rows(rows.x, np.searchsorted(labels, rows.y), rows.columns)
        valid = valid and Rows(valid.x, np.searchsorted(labels, valid.y), valid.columns)
    course = _Course(plan, rows)
    booster = (_light if plan.library == "lightgbm" else _extreme)(course, rows, valid)
    course.close()
    best = course.best_round + 1 if plan.early and valid else plan.rounds
    if plan.library == "lightgbm":
        file, model = "model.txt", _text(booster, best)
        booster.best_iteration = best  # what it answers here is what it will answer there
    else:
        booster = booster[:best] if best < booster.num_boosted_rounds() else booster
        file, model = "model.ubj", bytes(booster.save_raw("ubj"))
    about = {"library": plan.library, "columns": rows.columns, "rounds": best, "metrics": course.scores}
    about |= {"params": dict(plan.params), "seed": plan.seed, "chunk": plan.chunk}
    about |= {"labels": labels.tolist()} if labels is not None else {}
    said = json.dumps(about, indent=1, default=str).encode()
    put_files(folder, {file: model, "model.json": said, **sheet(plan.library, file, rows.columns)})
    return Fitted(booster, dict(course.scores), folder)


def answers(booster: Any, plan: Boosting, x: Any) -> Any:
    """What it says of rows, as whoever serves it will."""
    if plan.library == "lightgbm":
        return booster.predict(x, num_threads=cores())
    return booster.inplace_predict(x, validate_features=False)


def labels_of(plan: Boosting, y: Any) -> list[Any]:
    """The classes it tells apart, in its order; none where it foretells numbers."""
    classes = str(plan.params.get("objective")).startswith(("binary", "multi"))
    return np.unique(y).tolist() if classes else []


class _Course:
    """The way of one booster through its chunks: seeds, checkpoints, what others ask, and when it gets no better."""

    def __init__(self, plan: Boosting, rows: Rows) -> None:
        self.plan, self.here = plan, worker.attempt()
        self._chunk, self._exact = plan.stride, plan.exact
        said = [plan.library, dict(plan.params), plan.chunk, plan.seed, plan.early, _looks(rows)]
        mark = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:16]
        # Several boosters of a job, its folds perhaps, each find their own.
        self._folder = self.here.checkpoints / f"booster-{mark}" if self.here.checkpoints and plan.exact else None
        self.first, self.model, self.scores, self.best, self.best_round = 0, b"", Scores(), 0.0, -1
        self._saved = time.monotonic()
        for found, model in self._kept():
            self.first, self.model, self.scores = found["round"], model, found["scores"]
            self.best, self.best_round = found["best"], found["best_round"]
            break
        self.over = self._over(self.first - 1)
        if self._folder:
            self.here.asked()  # from here on a wish to stop is heard

    def seed(self, number: int) -> int | None:
        """The seed of the chunk that this round begins; nothing inside a chunk."""
        chunk, inside = divmod(number, self._chunk)
        return None if inside or (chunk and not self._exact) else mix(self.plan.seed, chunk) & 0x3FFFFFFF

    def after(self, number: int, scores: Scores, model: Any, *, larger: bool = False) -> bool:
        """A round is done; whether it was the last. `model` gives the bytes so far; the last score decides."""
        if scores:
            value = list(scores.values())[-1] * (-1 if larger else 1)
            if self.best_round < 0 or value < self.best:
                self.best, self.best_round = value, number
            self.scores = scores
        self.over = self._over(number)
        if (number + 1) % self._chunk == 0 or self.over:
            self._chunk_ends(number + 1, model)
        return self.over

    def close(self) -> None:
        """Say the last figures."""
        self.here.progress(self.plan.rounds, self.plan.rounds)

    def _over(self, number: int) -> bool:
        stale = self.plan.early and self.best_round >= 0 and number - self.best_round >= self.plan.early
        return bool(stale) or number + 1 >= self.plan.rounds

    def _chunk_ends(self, done: int, model: Any) -> None:
        if not self.over:
            self.here.progress(done, self.plan.rounds)
        for name, value in self.scores.items():
            self.here.metric(name, value, done)
        if self._folder is None or self.over:
            return  # nothing to save: whoever wants our place just ends us
        asked = self.here.asked()
        if asked or time.monotonic() - self._saved >= self.plan.save_s:
            self._save(self._folder, done, model())
        if asked == "stop":
            self.here.yield_place()

    def _save(self, folder: Path, done: int, model: bytes) -> None:
        began = time.monotonic()
        facts = {"round": done, "scores": self.scores, "best": self.best, "best_round": self.best_round}
        facts["sha256"] = hashlib.sha256(model).hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{done:09d}"
        put_file(path, json.dumps(facts).encode() + b"\n" + model)
        for old in sorted(folder.glob("[0-9]*"))[:-_KEPT]:
            old.unlink(missing_ok=True)
        self._saved = time.monotonic()
        self.here.checkpointed(done, str(path), self._saved - began)

    def _kept(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Checkpoints whose bytes are what they were, the newest first."""
        for path in sorted(self._folder.glob("[0-9]*"), reverse=True) if self._folder else ():
            head, _, model = path.read_bytes().partition(b"\n")
            try:
                facts = json.loads(head)
                whole = hashlib.sha256(model).hexdigest() == facts["sha256"]
            except (ValueError, KeyError, TypeError):
                facts, whole = {}, False
            if not whole:
                self.here.note(f"checkpoint {path.name} is broken: the one before it is used")
                continue
            yield facts, model


def _extreme(course: _Course, rows: Rows, valid: Rows | None) -> Any:
    xgboost, plan = import_module("xgboost"), course.plan
    names = list(rows.columns) or None
    params = {"nthread": cores()} | {"nthread" if name == "n_jobs" else name: plan.params[name] for name in plan.params}
    data = xgboost.DMatrix(rows.x, rows.y, feature_names=names, nthread=params["nthread"])
    evals = [(xgboost.DMatrix(valid.x, valid.y, feature_names=names), "valid")] if valid else []
    booster = xgboost.Booster(params, [data, *(one for one, _ in evals)])
    if course.model:
        booster.load_model(bytearray(course.model))
    method = params.get("tree_method", "auto")
    for number in range(course.first, plan.rounds if not course.over else 0):
        if (seed := course.seed(number)) is not None:
            # Another method and back: the tree builder, and with it what columns are drawn from, is made anew.
            if plan.exact:
                booster.set_param({"tree_method": "hist" if method == "approx" else "approx", "seed": 0})
                booster.save_config()
            booster.set_param({"tree_method": method, "seed": seed} if plan.exact else {"seed": seed})
        booster.update(data, number)
        scores = _read(booster.eval_set(evals, number)) if evals else {}
        last = next(reversed(scores), "").removeprefix("valid_")
        larger = last.startswith(_LARGER) and last != "mape"
        if course.after(number, scores, lambda: bytes(booster.save_raw("ubj")), larger=larger):
            break
    return booster


def _light(course: _Course, rows: Rows, valid: Rows | None) -> Any:
    lightgbm, plan = import_module("lightgbm"), course.plan
    params: dict[str, Any] = {"num_threads": cores(), "verbosity": -1}
    params |= {_LIGHT_WORDS.get(name, name): value for name, value in plan.params.items()}
    params["num_iterations"] = plan.rounds
    if not params.get("force_row_wise") and not params.get("force_col_wise"):
        # Left to itself it takes what a stopwatch says, and sums in another order each time.
        few = np.shape(rows.x)[1] < params["num_threads"]
        params["force_row_wise" if few else "force_col_wise"] = True
    keep = {"params": params, "free_raw_data": False}
    data = lightgbm.Dataset(rows.x, rows.y, feature_name=list(rows.columns) or "auto", **keep)
    checks = [lightgbm.Dataset(valid.x, valid.y, reference=data, **keep)] if valid else None

    def before(env: Any) -> None:
        if (seed := course.seed(env.iteration)) is not None:
            part = params.get("bagging_fraction", 1.0)
            if params.get("bagging_freq"):
                # Another part and back: what rows are drawn from is made anew. About the same: half would be copied.
                env.model.reset_parameter({**params, "bagging_fraction": 0.99 * part})
            env.model.reset_parameter(params | {name: seed + at for at, name in enumerate(_SEEDS)})

    def after(env: Any) -> None:
        told = env.evaluation_result_list or []
        scores = {f"{name}_{metric}": float(value) for name, metric, value, _ in told}
        larger = bool(told and told[-1][3])
        if course.after(env.iteration, scores, lambda: _text(env.model, -1), larger=larger):
            raise lightgbm.callback.EarlyStopException(env.iteration, told)

    setattr(before, "before_iteration", True)  # noqa: B010 - a mark that the library looks for
    began = lightgbm.Booster(model_str=course.model.decode()) if course.model else None
    if course.over:
        return began
    # Kept as it was trained: by itself the library would write it down and read it back once more.
    return lightgbm.train(
        params, data, valid_sets=checks, valid_names=["valid"] if checks else None, init_model=began,
        callbacks=[before, after], keep_training_booster=True,
    ).free_dataset()  # fmt: skip


def _looks(rows: Rows) -> list[Any]:
    """Enough of the rows to know them again: shape, columns, all that is said of them, a thousand of them."""
    some = np.ascontiguousarray(rows.x[:: max(1, len(rows.x) // 1000)])
    told = np.ascontiguousarray(rows.y)
    return [np.shape(rows.x), rows.columns, *(hashlib.sha256(one.tobytes()).hexdigest() for one in (some, told))]


def _text(booster: Any, rounds: int) -> bytes:
    text: str = booster.model_to_string(num_iteration=rounds)
    return text.encode()


def _read(line: str) -> Scores:
    """XGBoost's line of figures: `[3]	valid-auc:0.9	valid-logloss:0.2`."""
    pairs = (word.rpartition(":") for word in line.split("\t")[1:])
    return {name.replace("-", "_", 1): float(value) for name, _, value in pairs}


_OBJECTIVES = {
    "lightgbm": ("regression", "binary", "multiclass"),
    "xgboost": ("reg:squarederror", "binary:logistic", "multi:softprob"),
}
_LIGHT_WORDS = {
    "subsample": "bagging_fraction", "sub_row": "bagging_fraction", "bagging": "bagging_fraction",
    "subsample_freq": "bagging_freq", "boosting_type": "boosting",
    "n_jobs": "num_threads", "nthread": "num_threads", "nthreads": "num_threads", "num_thread": "num_threads",
}  # fmt: skip
"""Its other words for what we must know of."""
_OF_WRAPPERS = ("missing", "enable_categorical", "class_weight", "importance_type", "callbacks", "feature_types")
