"""What stands in each kit's README: for people who administer machines, not models."""

from __future__ import annotations

from unseen.federation.kit_spec import Federation

SITE = """# Kit of {name} in the federation {federation}

This folder lets one machine of yours take part in the federation **{federation}**. The machine
connects to `{host}`, TCP port {port}, and asks for work. **It accepts no connection from outside**:
one rule in your firewall, outwards to that address and port, is all it needs.

What leaves the machine: model parameters and the few numbers that the study's method names
(`unseen show METHOD` says which). Records of patients or customers do not leave it.{evaluates}

## Start

1. Install: Python 3.11 or newer, then `pip install 'unseen[flower]'`.
2. Put this folder on the machine, readable by the account that will run it and by nobody else:
   `chmod -R go-rwx .`
3. Check: `unseen federation doctor .` names what is wrong, with a remedy for each.
4. Start: `./start.sh /path/to/data` (a folder, or a csv file). It runs in the foreground until
   Ctrl-C. If the connection is lost it tries again by itself.

## What is in this folder

- `site.key`: this site's private key. **Secret**: whoever has it can take part in your name. Never
  send it, never copy it to another site.
- `site.pub`: its public half; the server has it already.
- `ca.crt`: by this the machine knows the right server.
- `kit.toml`: name of the site, address of the server.
- `start.sh`: starts the connection.{ckks}{masks}
- `site.toml`, `state/`, `logs/` appear at the first start: where the data is, what the method
  remembers at this site, a log. They are your site's own.

The code that trains is that of the `unseen` you installed. A server that asks for other code is
refused, and says so in the log.

If `site.key` may have been seen by others, tell the federation's organiser: they make a new one
(`unseen federation provision --renew {name}`) and the old one is refused from then on.
"""

EVALUATES = """

**This site only evaluates.** It receives the model and answers with how well it predicts; it never
trains, and nothing of it enters the model."""

CKKS = """
- `ckks.secret`: the key by which all sites read the encrypted sums. **Secret**: sites share it, the
  server must never have it.
- `ckks.public`: what sums are encrypted with."""

MASKS = """
- `masks.private`: what this site's updates are masked with. **Secret.**
- `masks.public.json`: the public halves of all sites."""

SERVER = """# Kit of the server of the federation {federation}

Address: {servers}, TCP port {port}. Sites connect to it; it connects to nobody.

## Start

1. `pip install 'unseen[flower]'`, Python 3.11 or newer.
2. Keep this folder for the account that runs it: `chmod -R go-rwx .`
3. `unseen federation doctor .`
4. `./start.sh`, or as a service: see `deploy/` of the project's repository.
5. In another terminal on this machine: `unseen federation run STUDY.toml --kit . --out DIR`, and
   `unseen federation status --kit . --out DIR`.

Runs are started, listed and stopped from this machine alone: other machines are answered only what
sites ask. Anybody who can log in here decides what runs at the sites within the limits of the
installed `unseen`, so choose who can. Do not put a proxy that ends TLS on this same machine: its
requests would look like your own.

## What is in this folder

- `server.key`: private key of the server's certificate. **Secret.**
- `server.crt`, `ca.crt`: the certificate, and the authority that signed it.
- `sites/*.pub`: the sites that may take part, one public key each: {sites}.
- `kit.toml`, `start.sh`: names and port; the start script.
- `state/`, `logs/` appear at the first start: the server's database, its log.

A site is let in by its file in `sites/` and shut out by removing it; a running server notices
within seconds. A key that was shut out stays out: to come back, a site needs a new one
(`unseen federation provision --renew SITE`).

The certificate is valid for {days} days. Renew it where the authority's folder is:
`unseen federation provision --renew server --out KITS`, carry `server.key` and `server.crt` here,
start again.
"""

AUTHORITY = """# Certificate authority of the federation {federation}

`ca.key` signs the server's certificate. Whoever has it can pose as the server.

**Keep this folder offline**: on an encrypted stick in a safe, not on the server and at no site. It
is needed again only to renew the server's certificate (`unseen federation provision --renew
server`), not to add sites. `ca.crt` is public and lies in every kit.
"""


def site(federation: Federation, name: str) -> str:
    """For the administrator of one site."""
    return SITE.format(
        name=name,
        federation=federation.name,
        host=federation.host,
        port=federation.port,
        evaluates=EVALUATES if federation.sites[name] == "evaluate" else "",
        ckks=CKKS if federation.ckks else "",
        masks=MASKS if federation.masks else "",
    )


def server(federation: Federation) -> str:
    """For whoever runs the server."""
    return SERVER.format(
        federation=federation.name,
        servers=", ".join(f"`{host}`" for host in federation.servers),
        port=federation.port,
        days=federation.days,
        sites=", ".join(federation.sites),
    )


def authority(federation: Federation) -> str:
    """For whoever keeps the authority's key."""
    return AUTHORITY.format(federation=federation.name)
