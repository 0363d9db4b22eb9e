"""A study at work, from the records that it leaves on disk: the terminal and trackers.

Trackers are off unless they are asked for. One that fails is dropped with a warning; the study
goes on.
"""

__all__ = ["state", "trackers"]
