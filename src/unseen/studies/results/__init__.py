"""What came out: records on disk, selection, statistics, tables. Nothing here runs a study."""

__all__ = ["records", "selection", "statistics", "study_results", "tables"]
