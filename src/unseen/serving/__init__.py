"""From a study to a model in use: train, predict, evaluate, export."""

__all__ = ["adapt", "directory", "evaluate", "export", "fit", "predict", "transductive"]
