"""What the command line does, as functions and as scikit-learn's estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unseen.api.choose_function import choose
    from unseen.api.estimators import FederatedClassifier, FederatedRegressor
    from unseen.api.functions import evaluate, predict, report, train, tune

_HOMES = {
    "choose": "choose_function",
    **dict.fromkeys(("FederatedClassifier", "FederatedRegressor"), "estimators"),
    **dict.fromkeys(("evaluate", "predict", "report", "train", "tune"), "functions"),
}

__all__ = [
    "FederatedClassifier",
    "FederatedRegressor",
    "choose",
    "evaluate",
    "predict",
    "report",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    # An estimator does not wait for what chooses and serves.
    if name not in _HOMES:
        raise AttributeError(f"module 'unseen.api' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"unseen.api.{_HOMES[name]}"), name)
