"""What the command line does, as functions and as scikit-learn's estimators."""

from unseen.api.choose_function import choose
from unseen.api.estimators import FederatedClassifier, FederatedRegressor
from unseen.api.functions import evaluate, predict, report, train, tune

__all__ = [
    "FederatedClassifier", "FederatedRegressor", "choose", "evaluate", "predict", "report",
    "train", "tune",
]  # fmt: skip
