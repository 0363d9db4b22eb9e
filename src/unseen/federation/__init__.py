"""Startup kits: what each site and the server need to run a federation over Flower.

The organiser makes all kits in one place and carries each to its machine.
"""

__all__ = ["doctor", "kit", "provision", "serve"]
