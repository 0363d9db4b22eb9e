"""A study at work: the bar in the terminal, and trackers.

Trackers are off unless they are asked for. One that fails is dropped with a warning; the study
goes on.
"""

__all__ = ["progress_bar", "trackers"]
