"""Features of a table by scikit-learn, which sees all training rows at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor

from unseen.data.tables.encoding import Schema


def by_scikit_learn(schema: Schema, train: Tensor, x: Tensor) -> npt.NDArray[np.float64]:
    """The same features by scikit-learn, fitted on the pooled training rows."""
    coded = (*schema.categories, *schema.flags)
    numeric = [j for j, name in enumerate(schema.columns) if name not in coded]
    fit, rows = train.numpy(), x.numpy()
    scaler = StandardScaler().fit(fit[:, numeric])
    imputer = SimpleImputer(strategy="mean", keep_empty_features=True)
    imputer.fit(scaler.transform(fit[:, numeric]))
    indicator = MissingIndicator(features="missing-only", error_on_new=False)
    indicator.fit(fit[:, numeric])
    parts = [imputer.transform(scaler.transform(rows[:, numeric]))]
    parts.append(indicator.transform(rows[:, numeric]))
    for j, name in enumerate(schema.columns):
        if name in coded:
            encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
            encoder.fit(fit[:, [j]])  # NaN is a category of its own, and the last
            keep = encoder.categories_[0] != 0 if name in schema.flags else slice(None)
            parts.append(encoder.transform(rows[:, [j]])[:, keep])
    return np.concatenate(parts, axis=1, dtype=np.float64)
