"""Tables: how csv files and data frames are read, described, checked and encoded."""

__all__ = ["columns", "delimited", "encoding", "frames", "sheet"]
