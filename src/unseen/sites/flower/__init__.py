"""The same rounds over real sites, on Flower's SuperLink and SuperNodes.

Note:
    A Flower app runs `unseen.core.round.play_round` unchanged: its backend, `site_backend.Sites`,
    turns one exchange into one message to each site and each site's answer into a `Reply`. Flower
    starts a new process per message, so a message carries all that a site must know, and what a
    site remembers is on its own disk.

    terms.py           what both ends agree on, and what the sites tell of their data
    site.py            a site: its kit, its data
    site_handler.py    one message at a site, opened and answered
    site_messages.py   the server's end: who is there, and one question to each
    site_backend.py    the backend: an exchange as such a question, behind a channel or not
    server_run.py      a study over the sites: jobs, records, what is resumed
    bundle.py          the app as Flower takes it; server_app.py and client_app.py are its two ends
    strategy.py        one of our rules as a strategy of Flower's
"""

__all__ = ["server_run", "site_handler", "strategy"]
