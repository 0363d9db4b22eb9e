"""Trackers: TensorBoard and MLflow, fed from the records that every study leaves on disk.

Off unless they are asked for. A tracker that fails is dropped with a warning; the study goes on.
"""
