"""unseen: federated domain generalization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unseen.version import __version__

if TYPE_CHECKING:
    from unseen.api.choose_function import choose
    from unseen.api.estimators import FederatedClassifier, FederatedRegressor
    from unseen.api.functions import evaluate, predict, train, tune
    from unseen.core.client import Client, Split
    from unseen.core.round import play, start
    from unseen.core.vector import Layout, Model
    from unseen.engine.inprocess import InProcess
    from unseen.errors import UnseenError
    from unseen.methods.compose import method
    from unseen.methods.recipe import Training
    from unseen.studies.execution import Study

_HOMES = {
    **dict.fromkeys(("Client", "Split"), "core.client"),
    "InProcess": "engine.inprocess",
    **dict.fromkeys(("Layout", "Model"), "core.vector"),
    "Study": "studies.execution",
    "Training": "methods.recipe",
    **dict.fromkeys(("play", "start"), "core.round"),
    "UnseenError": "errors",
    "method": "methods.compose",
    **dict.fromkeys(("FederatedClassifier", "FederatedRegressor"), "api.estimators"),
    **dict.fromkeys(("evaluate", "predict", "train", "tune"), "api.functions"),
    "choose": "api.choose_function",
}

__all__ = [
    "Client",
    "FederatedClassifier",
    "FederatedRegressor",
    "InProcess",
    "Layout",
    "Model",
    "Split",
    "Study",
    "Training",
    "UnseenError",
    "__version__",
    "choose",
    "evaluate",
    "method",
    "play",
    "predict",
    "start",
    "train",
    "tune",
]


def __dir__() -> list[str]:
    # Names that are not imported yet complete, too; what this file needs itself does not.
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING", "annotations", "_HOMES"})


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that `unseen --help` does not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'unseen' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"unseen.{_HOMES[name]}"), name)
