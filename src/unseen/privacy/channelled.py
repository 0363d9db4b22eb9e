"""A backend behind a channel: one for all transports, by which bytes get from side to side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from unseen.core import Backend, Inbox, Memories, Rows, Turn
from unseen.core.exchange import Disclosure, Exchange, Method, Reply, Undecided
from unseen.errors import BadReply
from unseen.privacy.kinds import CPU, STATE, Sealed, ServerSide, Site
from unseen.privacy.wire import unpack

if TYPE_CHECKING:
    from unseen.engine.inprocess import InProcess

#: Where the checkpoint of a run in one process has the state that a blind server cannot read.
STATES = "state (blind)"
#: Kind of answer -> what a ledger calls it, with its slot, and its form. A refusal says nothing.
ANSWERS = {
    "weights": ("{} weights", "plain"), "sum": ("{} sum", "plain"), "masked": ("{}", "masked"),
    "shared": ("seeds", "encrypted"), "confirmed": ("{} agreement", "encrypted"),
    "unmasked": ("{} seeds", "plain"),
}  # fmt: skip


@dataclass(frozen=True)
class SealedReply:
    """What leaves a site in one exchange.

    Scalars are as they are, rows sealed by slot. A state goes along where the server has no newer
    one.
    """

    scalars: Mapping[str, float | Tensor] = field(default_factory=dict)
    rows: Mapping[str, bytes] = field(default_factory=dict)
    state: bytes = b""


#: (client, what came from it) -> its reply; raises BadReply.
Opened = Callable[[str, SealedReply], Reply]
#: Makes the server's side, of public bytes alone.
Serve = Callable[[], ServerSide]


def leave(site: Site, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn) -> SealedReply:
    """Return all that leaves a site: scalars as they are, rows sealed by `Site.seal`, the state."""
    rows = site.seal(exchange, reply, inbox, turn) if exchange.slots else {}
    return SealedReply(reply.scalars, rows, site.state())


class Channelled(Backend):
    """A backend whose clients are sites behind a channel; a subclass gets bytes there and back."""

    server: ServerSide

    def __init__(self, backend: Backend, serve: Serve, memories: Memories | None = None) -> None:
        self.serve, self.saved = serve, memories or Memories()
        self.model, self.clients, self.memories = backend.model, backend.clients, backend.memories
        self.turn = Turn(0, 0, 1)
        self.disclosures: list[Disclosure] = []

    @abstractmethod
    def exchange(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], opened: Opened
    ) -> list[Reply]:
        """Return one reply for each client, in the order of the names.

        Replies must fit the inbox, stand-ins included. `opened` opens what comes from a client.
        """

    @abstractmethod
    def put(self, questions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the answers of the sites that give one."""

    @abstractmethod
    def restore(self) -> None:
        """Let the server's side go on from what `to_checkpoint` returned."""

    def carries_channel(self) -> bool:
        return True

    def played(self, method: Method) -> Method:
        self.server = self.serve()
        self.restore()
        return self.server.method(method)

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        """Return the replies; rows come sealed, and from a blind server the model goes sealed."""
        self.turn, self.disclosures = turn, []
        server, stale = self.server, self.server.stale

        def opened(name: str, sealed: SealedReply) -> Reply:
            if stale:
                if not sealed.state:
                    raise BadReply(f"site {name!r} sent no sealed state with its answer.")
                self._disclose(name, STATE, "encrypted", sealed.state)
            rows: Mapping[str, Tensor] = {}
            if exchange.slots:
                for slot, row in sealed.rows.items() if server.form else ():
                    self._disclose(name, slot, server.form, row)
                rows = cast("Mapping[str, Tensor]", server.opened(name, sealed.rows))
            if stale:  # not before its rows were found to be under the key of the others
                server.take(name, sealed.state)
            return Reply(rows, sealed.scalars)

        server.begin(exchange, turn)
        return self.exchange(exchange, inbox, clients, opened)

    def _disclose(self, name: str, label: str, form: str, content: bytes) -> None:
        self.disclosures.append(Disclosure(name, label, form, len(content)))

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> Rows:
        sealed = [cast("Sealed", reply.rows[slot]) for reply in replies]
        device = CPU if reference is None else reference.device
        return self.server.rows(slot, sealed, self.ask, device)

    def ask(self, questions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        answers = self.put(questions)
        for name, answer in answers.items():
            header: Mapping[str, Any] = {}
            with suppress(BadReply):  # who reads it says whose it is
                header, _ = unpack(answer, "an answer")
            if form := ANSWERS.get(str(header.get("kind", ""))):
                self._disclose(name, form[0].format(header.get("slot", "")), form[1], answer)
        return answers

    def undecided(self) -> list[Undecided]:
        pairs, self.server.undecided = self.server.undecided, []
        return pairs

    def disclosed(self) -> list[Disclosure]:
        return list(self.disclosures)


class LocalSites(Channelled):
    """Sites in this process: every message is bytes both ways."""

    def __init__(self, backend: InProcess, sites: dict[str, Site], serve: Serve) -> None:
        super().__init__(backend, serve, backend.memories)
        self.backend, self.sites = backend, sites

    def exchange(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], opened: Opened
    ) -> list[Reply]:
        clear, cargo, replies = self.server.clear(inbox), self.server.cargo(), []
        for name in clients:
            site, turn = self.sites[name], replace(self.turn, client=name)
            entries = site.receive(clear, cargo, turn)
            received = {n: entry.to(self.model.device) for n, entry in entries.items()}
            (reply,) = self.backend.map(exchange, received, [name], self.turn)
            replies.append(opened(name, leave(site, exchange, reply, received, turn)))
        return replies

    def put(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        return {name: self.sites[name].answer(q) for name, q in questions.items()}

    def to_checkpoint(self) -> Memories:
        """Return what the clients keep, and for a blind server the model as the sites have it.

        It is in the clear, since keys end with their process and no checkpoint has them.
        """
        site = next(iter(self.sites.values()))
        state = site.to_memory(self.server.cargo(), self.turn)
        states = {STATES: [((0, 0), dict(state))]} if state else {}
        return Memories({**self.backend.memories.by_client, **states})

    def restore(self) -> None:
        """Seal the model of a checkpoint with this run's key."""
        if STATES in self.saved.by_client:
            site = next(iter(self.sites.values()))
            self.server.restore(site.from_memory(self.saved.by_client[STATES][-1][1]))
