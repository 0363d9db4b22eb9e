"""What the server's machine asks of the SuperLink: let sites in, start and follow runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.federation.kit import Kit


@dataclass(frozen=True)
class Node:
    """A site as the SuperLink lists it.

    Attributes:
        status: registered, online, offline or unregistered.
    """

    id: int
    name: str
    status: str
    key: bytes


@dataclass(frozen=True)
class Run:
    """A run of the app.

    Attributes:
        state: Flower's own words, `finished:completed` at the end.
    """

    id: int
    state: str
    details: str = ""

    @property
    def over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state.startswith("finished")


@dataclass(frozen=True)
class Changes:
    """Sites let in, sites shut out, and sites whose key was shut out before and stays so."""

    new: tuple[str, ...]
    out: tuple[str, ...]
    spent: tuple[str, ...]


class Control:
    """A connection to the SuperLink on this machine."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def nodes(self) -> list[Node]:
        """All sites that are registered."""
        from flwr.proto.control_pb2 import ListNodesRequest

        listed = self.client.ListNodes(ListNodesRequest()).nodes_info
        nodes = [Node(n.node_id, n.name, n.status, bytes(n.public_key)) for n in listed]
        return [node for node in nodes if node.status != "unregistered"]

    def agree(self, keys: Mapping[str, bytes]) -> Changes:
        """Register these keys and no others."""
        import httpx
        from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

        nodes = self.nodes()
        registered = {node.key for node in nodes}
        out = [node for node in nodes if node.key not in keys.values()]
        for node in out:
            self.client.UnregisterNode(UnregisterNodeRequest(node_id=node.id))
        new, spent = [], []
        for name in (name for name, key in keys.items() if key not in registered):
            try:
                self.client.RegisterNode(RegisterNodeRequest(public_key=keys[name], name=name))
                new.append(name)
            except httpx.HTTPStatusError:  # Flower never takes back a key that was shut out
                spent.append(name)
        return Changes(tuple(new), tuple(node.name for node in out), tuple(spent))

    def start(self, app: Path, settings: Mapping[str, str | int | float | bool]) -> int:
        """Start a run of the app in a folder; its number."""
        import hashlib

        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        try:
            packed = build_fab_from_disk(app)
        except ValueError as error:
            raise UnseenError(
                f"{app} is not a Flower app: {' '.join(str(error).split())}"
            ) from None
        fab = fab_to_proto(Fab(hashlib.sha256(packed).hexdigest(), packed, {}))
        config = user_config_to_proto(dict(settings))
        reply = self.client.StartRun(StartRunRequest(fab=fab, override_config=config))
        if not reply.HasField("run_id"):
            raise UnseenError(f"the server did not start the run. {reply.note}")
        return int(reply.run_id)

    def run(self, number: int) -> Run:
        """Return how a run stands."""
        from flwr.proto.control_pb2 import ListRunsRequest

        status = self.client.ListRuns(ListRunsRequest(run_id=number)).run_dict[number].status
        state = ":".join(part for part in (status.status, status.sub_status) if part)
        return Run(number, state, status.details)

    def running(self) -> list[int]:
        """Runs that have not ended."""
        from flwr.proto.control_pb2 import ListRunsRequest

        runs = self.client.ListRuns(ListRunsRequest()).run_dict
        return [int(n) for n, run in runs.items() if run.status.status != "finished"]

    def stop(self, number: int) -> None:
        """Stop a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self.client.StopRun(StopRunRequest(run_id=number))


@contextlib.contextmanager
def control(kit: Kit, insecure: bool = False) -> Iterator[Control]:
    """Connect to this kit's SuperLink. HTTP errors are re-raised as a one-paragraph UnseenError."""
    needs_flower()
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

    client = ControlHttpClient.from_server_address(
        f"{local(kit)}:{kit.port}",
        insecure,
        None if insecure else (kit.folder / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield Control(client)
    except httpx.HTTPStatusError as error:
        text = error.response.text[:300]
        raise UnseenError(f"the server refused: {error.response.status_code} {text}") from None
    except httpx.TransportError as error:
        raise UnseenError(
            f"no server answers on {local(kit)}:{kit.port} ({error}). Start it on this machine: "
            f"unseen federation serve {kit.folder}"
        ) from None
    finally:
        client.close()


def local(kit: Kit) -> str:
    """Return the server's address on its own machine."""
    listen = str(kit.settings.get("listen", "127.0.0.1"))
    if listen in ("0.0.0.0", "::", "localhost"):
        return "127.0.0.1" if listen != "::" else "[::1]"
    return f"[{listen}]" if ":" in listen else listen


def needs_flower() -> None:
    """Say which extra brings Flower."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise UnseenError("a federation needs Flower: pip install 'unseen[flower]'.") from None
