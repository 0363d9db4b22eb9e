"""What a model's answers rest on: how much worse they are with a column's values exchanged."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from unseen.core.metrics.evaluation import LOWER, METRICS
from unseen.data.tables.encoding import indicators
from unseen.errors import UnseenError
from unseen.serving.evaluation.breakdown import Breakdown
from unseen.serving.policy import Policy
from unseen.serving.reading.inputs import Inputs, TableInputs

Outputs = Callable[[Tensor], Tensor]


class _Answering:
    """A model as scikit-learn's inspection takes it: its input says which row each cell is from."""

    def __init__(self, outputs: Outputs, x: Tensor, columns: list[list[int]]) -> None:
        self.outputs, self.x, self.columns = outputs, x, columns

    def fit(self, X: object, y: object) -> None:
        """Do nothing: the model is fitted."""

    def answer(self, rows: np.ndarray) -> Tensor:
        """Return the outputs [N, C] for rows made of cells; `rows[n, c]` is where one is from."""
        x = self.x.clone()
        for c, features in enumerate(self.columns):
            x[:, features] = self.x[torch.from_numpy(rows[:, c])][:, features]
        return self.outputs(x)


def importance(
    outputs: Outputs,
    inputs: Inputs,
    sites: Mapping[str, tuple[Tensor, Tensor]],
    metric: str,
    policy: Policy,
    repeats: int,
) -> Breakdown:
    r"""Return each column's permutation importance, the largest first.

        I_c = (1/K) Σ_k (m_k − mean_r m_k(c, r)),   negated where less of m is better

    m_k: the metric at site k; m_k(c, r): the same once the values of column c have been exchanged
    among the rows of site k, for the r-th time. Rows never cross sites, so that a column is not
    important only because sites differ in it.

    Source:
        Breiman. Random Forests. Machine Learning 2001; `sklearn.inspection`.
    """
    from sklearn.inspection import permutation_importance

    if not isinstance(inputs, TableInputs):
        raise UnseenError("--importance exchanges columns of a table; this model takes images.")
    names, columns = inputs.schema.names, features_by_column(inputs)

    def score(model: _Answering, rows: np.ndarray, y: Tensor) -> float:
        value = METRICS[metric](policy.for_metric(metric, model.answer(rows)), y)
        sign = -1 if metric in LOWER else 1
        return sign * value if value is not None else np.nan

    drops, skipped = [], []
    for site, (x, y) in sites.items():
        rows = np.repeat(np.arange(len(y))[:, None], len(names), axis=1)
        model = _Answering(outputs, x, columns)
        if np.isnan(score(model, rows, y)):
            skipped.append(site)
            continue
        result = permutation_importance(
            model, rows, y, scoring=score, n_repeats=repeats, random_state=0
        )
        drops.append(result.importances_mean)
    if not drops:
        raise UnseenError(f"{metric} is not defined at any site, so no column changes it.")
    means, deviations = np.mean(drops, axis=0), np.std(drops, axis=0)
    order = np.argsort(-means, kind="stable")
    texts = tuple(
        (names[c], f"{means[c]:.4f}", f"{deviations[c]:.4f}" if len(drops) > 1 else "")
        for c in order
    )
    note = f"mean loss of {metric} over {len(drops)} sites once a column's values are exchanged "
    note += f"among the rows of a site, {repeats} times"
    note += f"; not defined at {', '.join(skipped)}" * bool(skipped)
    head = ("column", f"loss of {metric}", "deviation over sites")
    return Breakdown("Importance", head, texts, note)


def features_by_column(inputs: TableInputs) -> list[list[int]]:
    """Return the places of the features that each column of a table becomes.

    By place and not by name: a column may be called "age missing" beside one called "age".
    """
    schema = inputs.schema
    gaps, codes = indicators(schema, inputs.statistics)
    owners = [*schema.numeric, *(schema.numeric[k] for k in gaps)]
    for (column, _), own in zip(schema.categorical, codes, strict=True):
        owners += [column] * len(own)
    for k, hashed in enumerate(schema.texts.values(), len(schema.columns)):
        owners += [k] * hashed.features
    columns: list[list[int]] = [[] for _ in schema.names]
    for feature, owner in enumerate(owners):
        columns[owner].append(feature)
    return columns
