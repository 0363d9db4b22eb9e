"""The federation of the heart study: three hospitals train, Switzerland is unseen."""

from __future__ import annotations

SITES = ("cleveland", "hungary", "va", "switzerland")
FEDERATION = """name = "heart"
servers = ["localhost", "127.0.0.1"]
port = {port}

[sites]
cleveland = "train"
hungary = "train"
va = "train"
switzerland = "evaluate"
"""
