"""What a site lets a study do: its own rules, its approval, its account of what left.

    site_policy.py   site.toml as a checked, frozen type
    proposals.py     a study as a site is asked to take part in it, and the digest that names it
    study_rules.py   the rules that a study alone can break
    approvals.py     the studies that wait at a site, and those that it approved
    study_review.py  what a study would read and send, in words, before it runs
    site_ledger.py   what left the site, line by line, in a chain of hashes
    ledger_check.py  the chain, and the server's ledger against the site's

Note:
    `unseen.sites.flower.gate` is the one place where a question meets all of these.
"""

__all__ = ["approvals", "ledger_check", "proposals", "site_ledger", "site_policy", "study_rules"]
