"""What a site lets a study do: its own rules, its approval, its account of what left.

`unseen.sites.flower.gate` is the one place where a question meets all of these.
"""

__all__ = ["approvals", "ledger_check", "site_ledger", "site_policy", "study_rules"]
