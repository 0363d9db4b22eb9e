"""Studies: their settings, plan, runs, records, statistics, choice and report.

`settings` reads a study, `execution` runs it, `results` reads and selects its records, `tracking`
follows it while it runs, `report` draws it, `choice` says which recipe to take, `audit` attacks
what its sites send.
"""

__all__ = ["audit", "choice", "execution", "report", "results", "settings", "tracking"]
