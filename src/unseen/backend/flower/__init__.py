"""The same rounds over real sites, on Flower's SuperLink and SuperNodes.

A Flower app runs `unseen.round.play_round` unchanged: its backend, `server.Sites`, turns one
exchange into one message to each site and each site's answer into a `Reply`. Flower starts a new
process per message, so a message carries all that a site must know, and what a site remembers lies
on its own disk.

    wire.py     what a message is made of
    terms.py    what the sites tell of their data, and what they agree on
    site.py     a site: its kit, its data, its client
    desk.py     the site's side of a message
    link.py     the server's end: who is there, and one question to each
    server.py   the backend: an exchange as such a question
    run.py      a study over the sites: jobs, records, what is resumed
    bundle.py   the app as Flower takes it; server_app.py and client_app.py are its two ends
    simulation.py   Flower's own engine as a backend of `unseen study`
"""

from __future__ import annotations

import importlib.util
import os

from unseen.errors import UnseenError

#: Changes whenever a message is made or read otherwise.
PROTOCOL = 4

#: Flower neither asks for updates nor reports usage nor installs anything.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def needs_flower() -> None:
    """Refuse to go on without Flower, and keep it quiet."""
    if importlib.util.find_spec("flwr") is None:
        raise UnseenError("this needs Flower: pip install 'unseen[flower]'.")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
