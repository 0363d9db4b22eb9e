"""A backend behind a channel: one for all transports, by which bytes get from side to side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from torch import Tensor

from unseen.core.client import Client, Memories
from unseen.core.disclosure import Disclosure, Undecided
from unseen.core.exchange import Exchange, Method, Reply, Turn
from unseen.core.round import Backend
from unseen.core.rows import Rows
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.errors import BadReply
from unseen.privacy.kinds import CPU, STATE, Cargo, Sealed, SealedReply, ServerSide, Site
from unseen.privacy.wire import unpack

if TYPE_CHECKING:
    from unseen.engine.inprocess import InProcess

#: Where the checkpoint of a run in one process has the state that a blind server cannot read.
STATES = "state (blind)"


class Mail(NamedTuple):
    """What the server sends with an exchange.

    Attributes:
        inbox: The entries that travel in the clear.
        cargo: What is sent in the place of the others.
        hello: What begins the exchange, see `ServerSide.hello`.
    """

    inbox: Inbox
    cargo: Cargo
    hello: str


class Transport(Protocol):
    """How the server's side and the sites' reach one another.

    Attributes:
        model, clients, memories: Those of the backend, see `unseen.core.round.Backend`.
    """

    @property
    def model(self) -> Model: ...
    @property
    def clients(self) -> Mapping[str, Client]: ...
    @property
    def memories(self) -> Memories: ...

    def exchange(
        self,
        exchange: Exchange,
        inbox: Inbox,
        mail: Mail,
        clients: Sequence[str],
        turn: Turn,
        opened: Callable[[str, SealedReply], Reply],
    ) -> list[Reply]:
        """Return one reply for each client, in the order of the names.

        Args:
            exchange: What is asked for.
            inbox: What the server has, stand-ins included: replies must fit it.
            mail: What is sent.
            clients: To whom.
            turn: Which round it is.
            opened: (client, what came from it) -> its reply; raises BadReply.
        """
        ...

    def ask(self, questions: Mapping[str, bytes], turn: Turn) -> Mapping[str, bytes]:
        """Return the answers of the sites that give one."""
        ...

    def save(self, server: ServerSide, turn: Turn) -> Memories:
        """Return what a checkpoint must hold of the server's side, and of what is here."""
        ...

    def load(self, server: ServerSide, memories: Memories) -> None:
        """Let the server's side go on from what `save` returned."""
        ...


@dataclass
class LocalSites:
    """Sites in this process: every message is bytes both ways."""

    backend: InProcess
    sites: dict[str, Site]

    @property
    def model(self) -> Model:
        """The module that all clients here train."""
        return self.backend.model

    @property
    def clients(self) -> Mapping[str, Client]:
        """All clients are here."""
        return self.backend.clients

    @property
    def memories(self) -> Memories:
        """What the clients keep."""
        return self.backend.memories

    def exchange(
        self,
        exchange: Exchange,
        inbox: Inbox,
        mail: Mail,
        clients: Sequence[str],
        turn: Turn,
        opened: Callable[[str, SealedReply], Reply],
    ) -> list[Reply]:
        """Let each client train on what its site makes of the mail."""
        replies = []
        for name in clients:
            site, context = self.sites[name], replace(turn, client=name)
            entries = site.receive(mail.inbox, mail.cargo, context)
            received = {n: entry.to(self.model.device) for n, entry in entries.items()}
            (reply,) = self.backend.map(exchange, received, [name], turn)
            replies.append(
                opened(name, leave(site, exchange, reply, received, context, mail.hello))
            )
        return replies

    def ask(self, questions: Mapping[str, bytes], turn: Turn) -> dict[str, bytes]:
        """Return every site's answer."""
        return {name: self.sites[name].answer(q) for name, q in questions.items()}

    def save(self, server: ServerSide, turn: Turn) -> Memories:
        """Return what the clients keep, and for a blind server the model as the sites have it.

        It is in the clear, since keys end with their process and no checkpoint has them.
        """
        site = next(iter(self.sites.values()))
        state = site.to_memory(server.cargo(), turn)
        states = {STATES: [((0, 0), dict(state))]} if state else {}
        return Memories({**self.memories.kept, **states})

    def load(self, server: ServerSide, memories: Memories) -> None:
        """Seal the model of a checkpoint with this run's key."""
        if STATES in memories.kept:
            site = next(iter(self.sites.values()))
            server.restore(site.from_memory(memories.kept[STATES][-1][1]))


def leave(
    site: Site, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn, hello: str
) -> SealedReply:
    """Return all that leaves a site in an exchange: scalars as they are, rows and state sealed."""
    rows = site.seal(exchange, reply, inbox, turn, hello) if exchange.slots else {}
    return SealedReply(reply.scalars, rows, site.state())


class Channelled(Backend):
    """A backend whose clients are sites behind a channel.

    Args:
        transport: How bytes get to the sites and back.
        serve: Makes the server's side for a method, of public bytes alone.
        memories: What a checkpoint held, of the server's side and of the clients here.
    """

    server: ServerSide

    def __init__(
        self,
        transport: Transport,
        serve: Callable[[Method], ServerSide],
        memories: Memories | None = None,
    ) -> None:
        self.transport, self.serve, self.saved = transport, serve, memories or Memories()
        self.model, self.clients = transport.model, transport.clients
        self.memories = transport.memories
        self.turn = Turn(0, 0, 1)
        self.disclosures: list[Disclosure] = []

    def to_checkpoint(self) -> Memories:
        """Return what the clients here keep, and what goes on with the server."""
        return self.transport.save(self.server, self.turn)

    def carries_channel(self) -> bool:
        """Return true."""
        return True

    def played(self, method: Method) -> Method:
        """Return the method as the server plays it; its side is made for it."""
        self.server = self.serve(method)
        self.transport.load(self.server, self.saved)
        return self.server.method(method)

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """Return the replies; rows come sealed, and from a blind server the model goes sealed."""
        self.turn, self.disclosures = turn, []
        server, wanted = self.server, self.server.stale
        mail = Mail(server.clear(inbox), server.cargo(), server.hello(exchange, turn))

        def opened(name: str, sealed: SealedReply) -> Reply:
            if wanted:
                self._take(name, sealed.state)
            if not exchange.slots:
                return Reply(scalars=sealed.scalars)
            if server.form:
                self._disclose(
                    name, {slot: (server.form, row) for slot, row in sealed.rows.items()}
                )
            rows = cast("Mapping[str, Tensor]", server.opened(name, sealed.rows))
            return Reply(rows, sealed.scalars)

        return self.transport.exchange(exchange, inbox, mail, clients, turn, opened)

    def _take(self, name: str, state: bytes) -> None:
        if not state:
            raise BadReply(f"site {name!r} sent no sealed state with its answer.")
        self.server.take(name, state)
        self._disclose(name, {STATE: ("encrypted", state)})

    def _disclose(self, name: str, content: Mapping[str, tuple[str, bytes]]) -> None:
        self.disclosures += [
            Disclosure(name, label, form, len(part)) for label, (form, part) in content.items()
        ]

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        """Return one slot's rows, whose questions go to the sites."""
        sealed = [cast("Sealed", reply.rows[slot]) for reply in replies]
        device = CPU if reference is None else reference.device
        return self.server.rows(slot, sealed, self.ask, device)

    def ask(self, questions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the answers of the sites that give one."""
        answers = self.transport.ask(questions, self.turn)
        for name, answer in answers.items():
            label, form = describe_answer(answer)
            if form:
                self._disclose(name, {label: (form, answer)})
        return answers

    def undecided(self) -> list[Undecided]:
        """Return pairs whose inner product could not be told from 0, since the last call."""
        pairs, self.server.undecided = self.server.undecided, []
        return pairs

    def disclosed(self) -> list[Disclosure]:
        """Return what left each client since the last `map` began."""
        return list(self.disclosures)


def describe_answer(message: bytes) -> tuple[str, str]:
    """Return what a ledger calls an answer, and its form; nothing for a bare acknowledgement."""
    header, _ = unpack(message, "an answer")
    slot = header.get("slot", "")
    return {
        "weights": (f"{slot} weights", "plain"),
        "sum": (f"{slot} sum", "plain"),
        "masked": (slot, "masked"),
    }.get(header.get("kind", ""), ("", ""))
