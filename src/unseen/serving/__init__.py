"""From a study to a model in use: train, predict, evaluate, export."""

__all__ = ["directory", "evaluate", "export", "fit", "predict"]
