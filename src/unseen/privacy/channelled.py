"""A backend behind a channel: one for all transports, by which bytes get from side to side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, cast

from torch import Tensor

from unseen.core.client import Memories
from unseen.core.exchange import Disclosure, Exchange, Method, Reply, Undecided
from unseen.core.round import Backend
from unseen.core.rows import Rows
from unseen.core.turn import Turn
from unseen.core.types import Inbox
from unseen.errors import BadReply
from unseen.privacy.kinds import CPU, STATE, Cargo, Sealed, ServerSide, Site
from unseen.privacy.wire import unpack

if TYPE_CHECKING:
    from unseen.engine.inprocess import InProcess

#: Where the checkpoint of a run in one process has the state that a blind server cannot read.
STATES = "state (blind)"


@dataclass(frozen=True)
class SealedReply:
    """What leaves a site in one exchange.

    Attributes:
        scalars: As they are.
        rows: Slot -> the row's message; none in an evaluation.
        state: The sealed state that the site works with, where the server has no newer one.
    """

    scalars: Mapping[str, float | Tensor] = field(default_factory=dict)
    rows: Mapping[str, bytes] = field(default_factory=dict)
    state: bytes = b""


#: (client, what came from it) -> its reply; raises BadReply.
Opened = Callable[[str, SealedReply], Reply]


@dataclass(frozen=True)
class Mail:
    """One exchange as the server sends it.

    Attributes:
        exchange: What is asked for.
        inbox: What the server has, stand-ins included: replies must fit it.
        clients: To whom it goes.
        turn: Which round it is.
        clear: The entries of the inbox that travel in the clear.
        cargo: What is sent in place of the others.
        hello: What begins the exchange, see `ServerSide.hello`.
    """

    exchange: Exchange
    inbox: Inbox
    clients: Sequence[str]
    turn: Turn
    clear: Inbox
    cargo: Cargo
    hello: str


class Transport(Protocol):
    """How the server's side and the sites' reach each other.

    Attributes:
        backend: The backend without a channel, whose model, clients and memories are taken.
    """

    @property
    def backend(self) -> Backend: ...

    def exchange(self, mail: Mail, opened: Opened) -> list[Reply]:
        """Return one reply for each client, in the order of the names."""
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
    """Sites in this process: every message is bytes both ways.

    Attributes:
        backend: Where clients train.
        sites: Name -> the channel's side.
    """

    backend: InProcess
    sites: dict[str, Site]

    def exchange(self, mail: Mail, opened: Opened) -> list[Reply]:
        """Let each client train on what its site makes of the mail."""
        replies = []
        for name in mail.clients:
            site, turn = self.sites[name], replace(mail.turn, client=name)
            entries = site.receive(mail.clear, mail.cargo, turn)
            inbox = {n: entry.to(self.backend.model.device) for n, entry in entries.items()}
            (reply,) = self.backend.map(mail.exchange, inbox, [name], mail.turn)
            replies.append(opened(name, leave(site, mail.exchange, reply, inbox, turn, mail.hello)))
        return replies

    def ask(self, questions: Mapping[str, bytes], turn: Turn) -> dict[str, bytes]:
        return {name: self.sites[name].answer(q) for name, q in questions.items()}

    def save(self, server: ServerSide, turn: Turn) -> Memories:
        """Return what the clients keep, and for a blind server the model as the sites have it.

        Note:
            It is in the clear, since keys end with their process and no checkpoint has them.
        """
        site = next(iter(self.sites.values()))
        state = site.to_memory(server.cargo(), turn)
        states = {STATES: [((0, 0), dict(state))]} if state else {}
        return Memories({**self.backend.memories.kept, **states})

    def load(self, server: ServerSide, memories: Memories) -> None:
        """Seal the model of a checkpoint with this run's key."""
        if STATES in memories.kept:
            site = next(iter(self.sites.values()))
            server.restore(site.from_memory(memories.kept[STATES][-1][1]))


def leave(
    site: Site, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn, hello: str
) -> SealedReply:
    """Return all that leaves a site: scalars as they are, rows sealed by `Site.seal`, the state."""
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
        backend = transport.backend
        self.model, self.clients, self.memories = backend.model, backend.clients, backend.memories
        self.turn = Turn(0, 0, 1)
        self.disclosures: list[Disclosure] = []

    def to_checkpoint(self) -> Memories:
        """Return what the clients here keep, and what goes on with the server."""
        return self.transport.save(self.server, self.turn)

    def carries_channel(self) -> bool:
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
        clear, cargo, hello = server.clear(inbox), server.cargo(), server.hello(exchange, turn)

        def opened(name: str, sealed: SealedReply) -> Reply:
            if wanted:
                if not sealed.state:
                    raise BadReply(f"site {name!r} sent no sealed state with its answer.")
                server.take(name, sealed.state)
                self._disclose(name, STATE, "encrypted", sealed.state)
            if not exchange.slots:
                return Reply(scalars=sealed.scalars)
            for slot, row in sealed.rows.items() if server.form else ():
                self._disclose(name, slot, server.form, row)
            rows = cast("Mapping[str, Tensor]", server.opened(name, sealed.rows))
            return Reply(rows, sealed.scalars)

        mail = Mail(exchange, inbox, clients, turn, clear, cargo, hello)
        return self.transport.exchange(mail, opened)

    def _disclose(self, name: str, label: str, form: str, content: bytes) -> None:
        self.disclosures.append(Disclosure(name, label, form, len(content)))

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        """Return one slot's rows, whose questions go to the sites."""
        sealed = [cast("Sealed", reply.rows[slot]) for reply in replies]
        device = CPU if reference is None else reference.device
        return self.server.rows(slot, sealed, self.ask, device)

    def ask(self, questions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the answers of the sites that give one."""
        answers = self.transport.ask(questions, self.turn)
        for name, answer in answers.items():
            header, _ = unpack(answer, "an answer")
            if form := ANSWERS.get(header.get("kind", "")):
                self._disclose(name, form[0].format(header.get("slot", "")), form[1], answer)
        return answers

    def undecided(self) -> list[Undecided]:
        pairs, self.server.undecided = self.server.undecided, []
        return pairs

    def disclosed(self) -> list[Disclosure]:
        return list(self.disclosures)


#: Kind of answer -> what a ledger calls it, with its slot, and its form. A refusal says nothing.
ANSWERS = {
    "weights": ("{} weights", "plain"), "sum": ("{} sum", "plain"), "masked": ("{}", "masked"),
}  # fmt: skip
