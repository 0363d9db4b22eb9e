"""The same rounds over real sites, on Flower's SuperLink and SuperNodes.

A Flower app runs `unseen.core.round.play_round` unchanged: its backend, `site_backend.Sites`, turns
one exchange into one message to each site and each site's answer into a `Reply`. Flower starts a
new process per message, so a message carries all that a site must know, and what a site remembers
is on its own disk. `server_run` is the server's end, `site_handler` a site's.
"""

__all__ = ["server_run", "site_handler", "strategy"]
