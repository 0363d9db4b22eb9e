"""From a study to a model in use: train, predict, evaluate, export."""
