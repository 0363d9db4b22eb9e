"""scikit-learn's interface: a federation over the sites that `groups` names."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from unseen.core import play
from unseen.core.client import Client, Split
from unseen.core.label_scale import Scale
from unseen.core.metrics.evaluation import forward
from unseen.core.outputs import predicted, probabilities
from unseen.data.dataset import DataSet
from unseen.data.tables.encoding import Schema, encode, unscaled
from unseen.data.tables.frame_levels import coded_frame, levels_of
from unseen.errors import UnseenError
from unseen.studies.execution.checks import check_clients, check_model
from unseen.studies.execution.doubts import text_of_unscaled
from unseen.studies.execution.label_kinds import times_of
from unseen.studies.execution.method_checks import check_method
from unseen.studies.execution.prepare import Prepared, evened
from unseen.studies.execution.runtime import Runtime, composed, first_network
from unseen.studies.execution.setting import Setting
from unseen.studies.settings.holdout import EVERYTHING, Task
from unseen.studies.settings.study import StudySpec

#: How many sites a warning names.
MOST = 5
#: The only site where nobody names any.
ALONE = "all"


def _sites(groups: Any, rows: int) -> np.ndarray:
    """Return each row's site [N]; a site of one row is warned of."""
    cells = np.asarray(groups, dtype=object).ravel()
    if len(cells) != rows:
        raise ValueError(f"groups names a site for each row: {len(cells)} for {rows} rows.")
    if lacking := [i for i, cell in enumerate(cells) if _is_missing(cell)]:
        raise UnseenError(
            f"groups names no site for {len(lacking)} of {rows} rows; the first is row "
            f"{lacking[0]}, counted from 0: {cells[lacking[0]]!r}.",
            remedy="Name a site for each, or leave these rows out.",
        )
    sites: np.ndarray = np.asarray(groups).astype(str).ravel()
    names, counts = np.unique(sites, return_counts=True)
    if len(names) > 1 and (alone := names[counts == 1].tolist()):
        more = f" and {len(alone) - MOST} more" if len(alone) > MOST else ""
        warnings.warn(
            f"sites of one row: {', '.join(map(repr, alone[:MOST]))}{more}. A study refuses such "
            "sites: what one sends is its row's. Join them to others, or leave them out.",
            stacklevel=4,
        )
    return sites


def _is_missing(cell: Any) -> bool:
    """Return whether a cell is None, NaN, or pandas' NA or NaT."""
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or cell != cell


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What both estimators share; numbers are standardised by sums over the sites."""

    def __init__(
        self,
        method: str = "glm",
        model: str = "mlp(widths=[32])",
        rounds: int = 20,
        training: dict[str, Any] | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = 0,
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.training = training
        self.random_state = random_state

    def _validated(self, X: Any, *y: Any, **options: Any) -> Any:
        """Return X [N, F] in float64, and y as it is; a frame's columns of words become codes."""
        if options.get("reset", True):
            self._levels = levels_of(X)
        X = coded_frame(X, self._levels)
        try:
            return validate_data(
                self, X, *y, dtype=np.float64, ensure_all_finite="allow-nan", **options
            )
        except ValueError as error:
            if "could not convert string" not in str(error):
                raise
            raise UnseenError(
                f"{str(error).rstrip('.')}: {type(self).__name__} takes numbers, "
                "and words in columns of a data frame that held words in fit.",
                remedy="Pass a data frame in place of an array, or correct the cell.",
            ) from error

    def _fit(self, X: np.ndarray, y: Tensor, groups: Any, classes: int | None) -> None:
        sites = np.full(len(X), ALONE) if groups is None else _sites(groups, len(X))
        self.sites_ = np.unique(sites)
        numbered = [f"x{j}" for j in range(X.shape[1])]
        names = tuple(map(str, getattr(self, "feature_names_in_", numbered)))
        schema = Schema(names, self._levels)
        x = torch.tensor(X, dtype=torch.float64)
        rows = {name: torch.from_numpy(np.flatnonzero(sites == name)) for name in self.sites_}
        sums = torch.stack([schema.sums(x[index]) for index in rows.values()]).sum(0)
        self._scale = None
        if classes is None:
            self._scale = Scale(float(y.mean()), float(y.std(correction=0)) or 1.0)
            if not math.isfinite(self._scale.mean) or not math.isfinite(self._scale.deviation):
                raise UnseenError(
                    f"y has numbers as large as {float(y.abs().max()):.3g}, whose mean or "
                    "deviation is too large for a number of 64 bits.",
                    remedy="Divide y by a fixed number, and multiply what is predicted by it.",
                )
            y = self._scale.standardised(y)
        if names := unscaled(schema, sums):
            warnings.warn(f"{text_of_unscaled(names)}.", stacklevel=3)
        features = encode(schema, sums, x)
        clients = {
            str(name): Client(str(name), Split(features[index], y[index]), None, classes)
            for name, index in rows.items()
        }
        self._schema, self._sums, self._classes = schema, sums, classes
        if not isinstance(self.rounds, int | np.integer):
            raise UnseenError(
                f"rounds must be a whole number; found {self.rounds!r}: an estimator plays all of "
                "them.",
                remedy="Take rounds=20, or train until flat by unseen.Study and unseen.train.",
            )
        self._study = StudySpec(
            methods=(self.method,),
            model=self.model,
            rounds=self.rounds,
            seeds=(self._seed(),),
            training=self.training or {},
        )
        if self._study.training.oversample and classes is not None:
            clients = evened(clients, self._seed())
        parts = self._parts(clients)
        self._check(*parts)
        runtime = self._runtime(*parts)
        state, _ = play(
            runtime.method,
            runtime.start(),
            runtime.in_process(),
            list(runtime.names),
            rounds=runtime.rounds,
        )
        self._method, self._network, self._inbox = runtime.method, runtime.model, dict(state.inbox)
        self.n_iter_ = runtime.rounds

    def _parts(self, clients: dict[str, Client]) -> tuple[Setting, DataSet, Prepared]:
        classes, study = self._classes, self._study
        shape = tuple(next(iter(clients.values())).split("train").x.shape[1:])
        prepared = Prepared(clients, {}, {}, shape, classes or 1, classes, self._sums, self._scale)
        names = tuple(map(str, range(classes))) if classes is not None else None
        data = DataSet("arrays", (), names, "", "", "", self._schema)
        return Setting(study, Path(), None, "", str(study.model), ("loss",)), data, prepared

    def _check(self, setting: Setting, data: DataSet, prepared: Prepared) -> None:
        """Refuse what a study of these rows would refuse."""
        study, seed = self._study, self._study.seed_list[0]
        times_of(data, study)
        method = composed(study.methods[0], study, data)
        network = first_network(setting, prepared, seed)
        check_model(network, prepared, study)
        task = Task(EVERYTHING, tuple(prepared.sources), ())
        check_clients(prepared, study, task, steps=not method.fits)
        if reason := check_method(setting, prepared, method, network, seed):
            raise UnseenError(f"{method.name} {reason}.", remedy="Take another method.")

    def _runtime(self, setting: Setting, data: DataSet, prepared: Prepared) -> Runtime:
        job = self._study.methods[0], self._study.seed_list[0]
        return Runtime.of(setting, data, prepared, *job, evaluates=False)

    def __getstate__(self) -> dict[str, Any]:
        # Methods are made of functions inside functions, which do not pickle; they are made again.
        state = dict(super().__getstate__())
        return {k: v for k, v in state.items() if k not in ("_method", "_network")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_inbox" not in state:
            return
        x = encode(self._schema, self._sums, torch.zeros(1, len(self._schema.columns)).double())
        y = torch.zeros(1) if self._classes is None else torch.zeros(1, dtype=torch.int64)
        rows = Split(x, y)
        clients = {str(n): Client(str(n), rows, None, self._classes) for n in self.sites_}
        runtime = self._runtime(*self._parts(clients))
        self._method, self._network = runtime.method, runtime.model

    def _seed(self) -> int:
        state = self.random_state
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31 - 1))
        if isinstance(state, np.random.Generator):
            return int(state.integers(2**31 - 1))
        return int(state or 0)

    def _outputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        x = encode(self._schema, self._sums, torch.tensor(X, dtype=torch.float64))
        model = self._network
        model.bind(self._inbox["model"].clone(), self._inbox["buffers"].clone())
        y = torch.zeros(len(x), dtype=torch.int64)
        inbox = self._inbox | {"model": model.vector, "buffers": model.buffers}
        return forward(model, Split(x, y), self._method.predict, inbox).double()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Classes, by a federation: `fit(X, y, groups=site)`.

    Attributes:
        method: A method with modifiers, such as "fedavg+ga".
        model: The network, of which exact methods take no notice.
        rounds: How many; exact methods take their own.
        training: The `[training]` table of a study.
        random_state: The seed of all draws: a number, NumPy's generator, or None, which is 0, so
            that two fits of the same rows are the same.
        classes_: The classes.
        sites_: The sites.

    Example:
        >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
        >>> y, sites = ["low", "low", "high", "high"], ["north", "south", "north", "south"]
        >>> model = FederatedClassifier().fit(X, y, groups=sites)
        >>> model.predict([[1.5], [-1.5]]).tolist()
        ['high', 'low']
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit by exchanges between sites; `groups` names each row's [N], None is one site.

        Rows have no weights: `sample_weight` is refused as any unknown argument.
        """
        X, y = self._validated(X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("FederatedClassifier needs two classes; the data have one class.")
        self._fit(X, torch.from_numpy(codes).long(), groups, len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities [N, C] in the order of `classes_`."""
        p: np.ndarray = probabilities(self._outputs(X)).numpy()
        return p

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return logarithms of `predict_proba`, −inf of 0, [N, C]."""
        with np.errstate(divide="ignore"):
            logs: np.ndarray = np.log(self.predict_proba(X))
        return logs

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest class of each row [N]."""
        outputs = self._outputs(X)
        answers: np.ndarray = self.classes_[predicted(outputs).numpy()]
        return answers


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """Numbers, by a federation: `fit(X, y, groups=site)`; see `FederatedClassifier`."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit by exchanges between sites; `groups` names each row's [N], None is one site."""
        X, y = self._validated(X, y, y_numeric=True)
        self._fit(X, torch.tensor(y, dtype=torch.float64), groups, None)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the number of each row [N], in the label's unit."""
        outputs = self._outputs(X)
        if self._scale is None:
            raise UnseenError("the model was not fitted.")
        numbers: np.ndarray = self._scale.restored(outputs).squeeze(-1).numpy()
        return numbers
