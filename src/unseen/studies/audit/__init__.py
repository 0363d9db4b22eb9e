"""What an attacker gets out of what leaves the clients: measured by attacking, not by claims."""

__all__ = ["attacks", "audit_page"]
