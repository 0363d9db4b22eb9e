"""The version of this package, and the date of its release."""

__version__ = "0.2.0"
RELEASED = "2026-11-29"
