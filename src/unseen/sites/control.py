"""What the server's machine asks of the SuperLink, and how a run stands by what its app wrote."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, absent
from unseen.sites.kits.kit import Kit
from unseen.sites.process import say, without_proxy

SPENT = "its key was shut out before and stays out. A new key: unseen federation provision --renew"
#: Written by the app: who is connected, which round and exchange, the last error; what the sites
#: told at the start; every message of a job. And the coordinator's signature under the study.
STANDING, TERMS, MESSAGES = "federation.json", "terms.json", "messages.jsonl"
SIGNATURE = "signature.json"
#: Where the records of `train` and of `choose` lie in the folder that was named.
INSIDE = ("training", "records")
#: What is said of a run for each piece of news.
PROGRESS = {
    "seed": "{method} on {task}, seed {seed}", "round": "round {from_one} of {rounds}",
    "exchange": "{exchange}", "error": "error: {error}",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run of the app."""

    state: str
    details: str = ""

    @property
    def over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state.startswith("finished")


class Control:
    """A connection to the SuperLink on this machine, through Flower's client of its API."""

    def __init__(self, client: Any) -> None:
        from flwr.proto import control_pb2

        self.client, self.proto = client, control_pb2
        self.old: set[str] = set()

    def nodes(self) -> list[Any]:
        """Return all sites that are registered; without keys they have no name."""
        nodes = self.client.ListNodes(self.proto.ListNodesRequest()).nodes_info
        return [node for node in nodes if node.status != "unregistered"]

    def online(self) -> set[str]:
        """Return the sites that are connected, by name, or by number where they have none."""
        return {node.name or str(node.node_id) for node in self.nodes() if node.status == "online"}

    def agree(self, keys: Mapping[str, bytes]) -> list[str]:
        """Register these keys and no others, and return what changed, in words."""
        import httpx

        nodes = {bytes(node.public_key): node for node in self.nodes()}
        out, new, old = [], [], set()
        for node in (node for key, node in nodes.items() if key not in keys.values()):
            self.client.UnregisterNode(self.proto.UnregisterNodeRequest(node_id=node.node_id))
            out.append(f"{node.name}: shut out, its key is no longer in sites/")
        for name in (name for name, key in keys.items() if key not in nodes):
            request = self.proto.RegisterNodeRequest(public_key=keys[name], name=name)
            try:
                self.client.RegisterNode(request)
                new.append(f"{name}: let in, its key is registered")
            except httpx.HTTPStatusError:  # Flower never takes back a key that was shut out
                old.add(name)
        before, self.old = self.old, old
        return [*new, *out, *(f"{name}: {SPENT} {name}" for name in sorted(old - before))]

    def start(self, app: Path, settings: Mapping[str, str | int | float | bool]) -> int:
        """Start a run and return its number."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.supercore.fab import Fab

        try:
            packed = build_fab_from_disk(app)
        except ValueError as error:
            why = " ".join(str(error).split())
            raise UnseenError(f"{app} is not a Flower app: {why}") from None
        fab = fab_to_proto(Fab(hashlib.sha256(packed).hexdigest(), packed, {}))
        config = user_config_to_proto(dict(settings))
        reply = self.client.StartRun(self.proto.StartRunRequest(fab=fab, override_config=config))
        if not reply.HasField("run_id"):
            raise UnseenError(f"the server did not start the run. {reply.note}")
        return int(reply.run_id)

    def run(self, number: int) -> Run:
        runs = self.client.ListRuns(self.proto.ListRunsRequest(run_id=number))
        status = runs.run_dict[number].status
        return Run(":".join(filter(None, (status.status, status.sub_status))), status.details)

    def running(self) -> list[int]:
        """Return the numbers of the runs that have not ended."""
        runs = self.client.ListRuns(self.proto.ListRunsRequest()).run_dict
        return [int(n) for n, run in runs.items() if run.status.status != "finished"]

    def stop(self, number: int) -> None:
        self.client.StopRun(self.proto.StopRunRequest(run_id=number))


@contextlib.contextmanager
def control(kit: Kit) -> Iterator[Control]:
    """Connect to the SuperLink of a server's kit."""
    needs_flower()
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

    where = kit.here
    authority = (kit.folder / "ca.crt").read_bytes()
    interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    os.environ.update(without_proxy())  # which the client reads when it is made
    client = ControlHttpClient.from_server_address(
        where, False, authority, interceptors=interceptors
    )
    try:
        yield Control(client)
    except httpx.HTTPStatusError as error:
        text = error.response.text[:300]
        raise UnseenError(f"the server refused: {error.response.status_code} {text}") from None
    except httpx.TransportError as error:
        remedy = f"Start it on this machine: unseen federation serve {kit.folder}"
        raise UnseenError(f"no server answers on {where} ({error}).", remedy=remedy) from None
    finally:
        client.close()


def needs_flower() -> None:
    """Refuse to continue without Flower."""
    if find_spec("flwr") is None:
        instead = "run the study on this machine by unseen study"
        raise absent("flwr", "a federation needs", "flower", instead)


def status(kit: Kit, out: Path | None) -> None:
    """Tell who is connected, and how the run stands by the folder of its records, if any."""
    try:
        with control(kit) as link:
            for node in sorted(link.nodes(), key=lambda n: n.name):
                say(f"{node.name or node.node_id}: {node.status}")
            busy = link.running()
            say(f"run {busy[0]}: {link.run(busy[0]).state}" if busy else "no run")
    except UnseenError as error:
        if out is None:
            raise
        say(str(error))  # what the run wrote last is there without it
    if out is None:
        return
    if not (news := standing(out)):
        say(f"{out / STANDING}: not written yet")
        return
    waiting, connected = news.get("waiting"), ", ".join(map(str, news.get("connected", ())))
    say(f"study {news.get('name', '?')}: {'finished' if news.get('finished') else 'not finished'}")
    sites = connected and f"last seen by the run: {connected}"
    waits = waiting and f"waiting {waiting}"
    for line in filter(None, (progress(news), waits, sites, *remarks(news))):
        say(line)


def standing(out: Path) -> Mapping[str, Any]:
    """Return what the app wrote last; empty before, or in the middle of a write."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((records_in(out, STANDING) / STANDING).read_bytes()))
    return {}


def records_in(out: Path, file: str) -> Path:
    """Return the folder of a run's records: the one that was named, or one inside that has a file.

    `out` is what --out of `run`, `train` or `choose` was.
    """
    places = (out, *(out / name for name in INSIDE))
    return next((place for place in places if (place / file).is_file()), out)


def remarks(news: Mapping[str, Any]) -> list[str]:
    """Return what deserves a remark: of the data, and whom run and last exchange go without."""
    without, absent = news.get("without"), news.get("absent")
    return [
        *(f"of the data: {note}" for note in news.get("remarks", ())),
        *([f"does not take part: {without}"] if without else ()),
        *([f"goes on without {absent}"] if absent else ()),
    ]


def progress(news: Mapping[str, Any]) -> str:
    """Return one line about it."""
    values = {key: value for key, value in {"rounds": "?", **news}.items() if value != ""}
    values["from_one"] = int(values.get("round", 0)) + 1
    return "; ".join(text.format_map(values) for key, text in PROGRESS.items() if key in values)
