"""unseen: federated domain generalization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unseen.backend.inprocess import InProcess
    from unseen.client import Client, Split
    from unseen.errors import UnseenError
    from unseen.methods.compose import method
    from unseen.round import play, start
    from unseen.study.spec import Study
    from unseen.training import Training
    from unseen.vector import Layout, Model

_HOMES = {
    "Client": "client",
    "InProcess": "backend.inprocess",
    "Layout": "vector",
    "Model": "vector",
    "Split": "client",
    "Study": "study.spec",
    "Training": "training",
    "UnseenError": "errors",
    "method": "methods.compose",
    "play": "round",
    "start": "round",
}

__all__ = [
    "Client",
    "InProcess",
    "Layout",
    "Model",
    "Split",
    "Study",
    "Training",
    "UnseenError",
    "__version__",
    "method",
    "play",
    "start",
]


def __dir__() -> list[str]:
    # Names that are not imported yet complete, too; what this file needs itself does not.
    own = {"Any", "TYPE_CHECKING", "annotations", "_HOMES"}
    return sorted({*globals(), *__all__} - own)


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that `unseen --help` does not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'unseen' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"unseen.{_HOMES[name]}"), name)
