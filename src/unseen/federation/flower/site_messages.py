"""The server's end of Flower's line: the sites by name, one message to each, and its answer.

`Link` finds out who is there and asks, whatever is asked, until enough have answered.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from unseen.engine.messages import Parcel, Value, pack, size, unpack
from unseen.errors import BadReply, UnseenError
from unseen.federation.flower.protocol import FAILED, PROTOCOL, REFUSED, Refused
from unseen.federation.flower.terms import Facts
from unseen.spec.study import Federation
from unseen.version import __version__

LOG = logging.getLogger("flwr")
#: How often the server looks for answers and for sites, in seconds.
POLL, LOOK = 0.2, 2.0
#: How often one site is asked in one exchange if it gives no answer.
ATTEMPTS = 3
#: How long nobody new must come where no site is named, and how long a new one may take to say who
#: it is, in seconds.
QUIET, SETTLED = 10.0, 60.0
AWAY = "was not connected"
KEPT = "Progress up to the last finished round is saved. Run the same command again to resume."


class Grid(Protocol):
    """What is used of Flower's Grid."""

    def get_nodes(self) -> Iterable[Any]: ...

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]: ...


class Waiting(UnseenError):
    """The minimum of sites did not come in time. Nothing is lost: the same command goes on."""


@dataclass
class Question:
    """What one site is asked, and what became of it."""

    site: str
    parcel: Parcel
    sent: float = 0.0
    id: str = ""
    node: tuple[int, str] = (0, "")
    attempts: int = 0
    answer: dict[str, Value] | None = None
    fault: str = AWAY
    final: bool = False
    up: int = 0
    seconds: float = 0.0

    def again(self, here: Mapping[str, tuple[int, str]]) -> bool:
        """Return whether the site is to be asked, for the first time or once more."""
        return not self.final and not self.id and self.site in here and self.attempts < ATTEMPTS


@dataclass
class Link:
    """The sites behind Flower's Grid, by name.

    Attributes:
        introduce: The parcel by which a new node is asked who it is.
        tell: Called with whatever changes, for `unseen federation status`.
        nodes: (node, start) -> site, the newest last where two have one name.
        hellos: Message -> the node that was asked who it is.
        facts: What each site says of its data.
        refused: Site -> why it cannot take part.
        keyed: Node -> the name that its key is registered for.
    """

    grid: Grid
    limits: Federation
    introduce: Parcel
    tell: Callable[..., None] = field(default=lambda **news: None)
    nodes: dict[tuple[int, str], str] = field(default_factory=dict)
    hellos: dict[str, tuple[int, str]] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    keyed: dict[tuple[int, str], str] = field(default_factory=dict)
    online: frozenset[tuple[int, str]] = frozenset()
    looked: float = -1e9

    def sites(self) -> dict[str, tuple[int, str]]:
        """Return the sites that are there: name -> node, the newest where two bear one name."""
        return {name: node for node, name in self.nodes.items() if node in self.online}

    def look(self, at_once: bool = False) -> None:
        """See who came and who left; ask those who came who they are."""
        if not at_once and time.monotonic() - self.looked < LOOK:
            return
        self.looked = time.monotonic()
        # A node that was started again keeps its number where it has a key, and loses its messages.
        # Its name is what its key was registered for; without keys there is none.
        self.keyed = {(n.node_id, n.last_activated_at): n.name for n in self.grid.get_nodes()}
        online = frozenset(self.keyed)
        before = set(self.sites())
        self.online = online
        self.hellos = {id: node for id, node in self.hellos.items() if node in online}
        fresh = [n for n in online if n not in self.nodes and n not in self.hellos.values()]
        for node in fresh:
            self.hellos[self._push(node, self.introduce, LOOK + self.limits.deadline, "0")] = node
        if set(self.sites()) != before:
            self.tell(connected=sorted(self.sites()))

    def meet(self) -> None:
        """Take in the answers of those who were asked who they are."""
        for id, parcel, fault in self._pull(list(self.hellos)):
            node = self.hellos.pop(id)
            try:
                facts = introduced(parcel, fault, self.keyed.get(node, ""))
            except Refused as error:
                self.nodes[node] = f"(node {node[0]})"
                self.refused[self.nodes[node]] = str(error)
                LOG.warning("node %s cannot take part: %s", node[0], error)
                self.tell(error=str(error))
                continue
            self.nodes.pop(node, None)
            self.nodes[node] = facts.site  # the newest stands last
            self.facts[facts.site] = facts
            LOG.info("site %s is here (%s)", facts.site, facts.role)
            self.tell(connected=sorted(self.sites()))

    def gather(
        self, wanted: Sequence[str], patience: float, alone: float | None = None
    ) -> dict[str, Facts]:
        """Wait for the wanted sites, or where none is named for whichever sites connect.

        Args:
            wanted: Names of the sites to wait for.
            patience: Seconds to wait for the minimum.
            alone: Seconds after which the minimum is enough; the patience, if None.

        Raises:
            Waiting: Fewer than the minimum are connected at the end of the patience.
        """
        alone = patience if alone is None else min(alone, patience)
        begun = changed = time.monotonic()
        count = -1
        while True:
            self.look()
            self.meet()
            here = [name for name in self.sites() if name in self.facts]
            if len(here) != count:
                count, changed = len(here), time.monotonic()
            missing = sorted(set(wanted) - set(here))
            now = time.monotonic()
            # Who is here and has not said its name may be a target, for which nobody waits.
            settled = not self.hellos or now - changed > SETTLED
            if wanted and not missing and settled:
                break
            if not wanted and count >= self.limits.minimum and now - changed > QUIET and settled:
                break
            least = min(self.limits.minimum, len(wanted) or self.limits.minimum)
            if now - begun > alone and count >= least:
                break
            if now - begun > patience:
                raise Waiting(
                    f"after {patience:g} s {len(here)} sites are here ({', '.join(here) or 'none'})"
                    f", at least {self.limits.minimum} are needed"
                    + (f"; missing: {', '.join(missing)}" if missing else "")
                    + whys(self.refused)
                    + ". Start them, and run the same command again."
                )
            self.tell(waiting=f"for {', '.join(missing) or 'sites'}; {len(here)} are here")
            time.sleep(POLL)
        self.tell(waiting="", connected=sorted(here))
        return {name: self.facts[name] for name in here}

    def ask(
        self,
        kind: str,
        parcels: Mapping[str, Parcel],
        about: str,
        minimum: int = 0,
        good: Callable[[Mapping[str, Value]], str | None] = lambda answer: None,
        group: str = "0",
    ) -> dict[str, Question]:
        """Ask each site; wait until all connected ones have answered or the deadline is over.

        A site that connects meanwhile is asked as well: a message that arrives twice leads to the
        same answer.

        Args:
            kind: What is asked, see `site_handler.answering`.
            parcels: Site -> what is sent.
            about: Repeated by each answer, so that no answer is taken for another's.
            minimum: How many good answers are needed.
            good: Returns what is wrong with an answer, which is then final.
            group: Flower's group of the messages.

        Raises:
            Waiting: Too few good answers at the end of deadline and patience.
        """
        common: dict[str, Value] = {"kind": kind, "protocol": PROTOCOL, "about": about}
        open = {name: Question(name, {**common, **parcel}) for name, parcel in parcels.items()}
        begun = time.monotonic()
        while True:
            self.look()
            self.meet()
            self._send([q for q in open.values() if not q.final], group)
            self._receive(open, about, good)
            here = self.sites()
            pending = [q for q in open.values() if q.id or q.again(here)]
            count = sum(q.answer is not None for q in open.values())
            hopeless = all(q.final for q in open.values())
            now = time.monotonic() - begun
            if count >= minimum and (not pending or now > self.limits.deadline):
                break
            if hopeless and not count:
                break  # every answer was bad: the round says what that means
            if hopeless or now > self.limits.deadline + self.limits.patience:
                raise Waiting(
                    f"{about}: {count} of at least {minimum} sites gave an answer that can be used"
                    + whys({q.site: q.fault for q in open.values() if q.answer is None})
                    + f". {KEPT}"
                )
            if pending or count < minimum:
                late = [q.site for q in open.values() if q.answer is None and not q.final]
                self.tell(waiting=f"for {', '.join(late)}")
            time.sleep(POLL)
        for q in pending:
            q.fault = f"no answer within the deadline of {self.limits.deadline:g} s"
        self.tell(waiting="")
        return open

    def _send(self, questions: Sequence[Question], group: str) -> None:
        """Ask those who are there and have not been asked, or were started again since."""
        sites = self.sites()
        for q in questions:
            if q.id and sites.get(q.site) != q.node:
                q.id, q.fault = "", "left within the exchange"
            if q.site in sites and sites[q.site] != q.node:
                q.attempts = 0  # another start of the site, another try
            if not q.again(sites):
                continue
            node = sites[q.site]
            q.id = self._push(node, q.parcel, self.limits.deadline + self.limits.patience, group)
            q.node, q.sent, q.attempts = node, time.monotonic(), q.attempts + 1

    def _receive(
        self,
        open: Mapping[str, Question],
        about: str,
        good: Callable[[Mapping[str, Value]], str | None],
    ) -> None:
        ids = {q.id: q for q in open.values() if q.id}
        for id, parcel, fault in self._pull(list(ids)):
            q = ids.pop(id, None)
            if q is None or q.id != id:
                continue  # an answer that came twice
            q.id, q.seconds = "", time.monotonic() - q.sent
            if parcel is None:
                q.fault = fault
                continue  # a process that was killed, say: the site is asked once more
            q.up = size(parcel)
            q.fault = unfit(parcel, q.site, about) or _judged(good, parcel) or ""
            q.final = FAILED not in parcel or q.attempts >= ATTEMPTS
            if q.fault:
                LOG.warning("%s: site %s: %s", about, q.site, q.fault)
            else:
                q.answer = parcel

    def _push(self, node: tuple[int, str], parcel: Parcel, ttl: float, group: str) -> str:
        from flwr.app import Message

        message = Message(pack(parcel), node[0], "query", ttl=ttl + 60, group_id=group)
        (id,) = self.grid.push_messages([message]) or (None,)
        return str(id or "")

    def _pull(self, ids: list[str]) -> list[tuple[str, dict[str, Value] | None, str]]:
        """Answers so far: which message, what was said, or why nothing was."""
        answers: list[tuple[str, dict[str, Value] | None, str]] = []
        for message in self.grid.pull_messages(ids) if ids else ():
            id = message.metadata.reply_to_message_id
            if message.has_error():
                answers.append((id, None, f"no answer: {message.error.reason}"))
                continue
            try:
                answers.append((id, unpack(message.content), ""))
            except Exception as error:  # whatever a site sends, the others go on
                why = f"{type(error).__name__}: {error}"
                answers.append((id, None, f"an answer that cannot be read ({why})"))
        return answers


def introduced(parcel: Mapping[str, Value] | None, fault: str, keyed: str) -> Facts:
    """What a new node says of itself; refused if that is nothing, or not whose key it has."""
    answer = parcel or {}
    if "facts" not in answer:
        raise Refused(str(answer.get(REFUSED) or answer.get(FAILED) or fault))
    try:
        facts = Facts.read(json.loads(str(answer["facts"])))
    except Exception as error:
        raise Refused(f"it told nothing of its data that can be read ({error!r})") from None
    if keyed and facts.site != keyed:
        raise Refused(
            f"it says that it is {facts.site!r}, and its key is registered for {keyed!r}: each "
            "site needs its own kit"
        )
    return facts


def _judged(
    good: Callable[[Mapping[str, Value]], str | None], answer: Mapping[str, Value]
) -> str | None:
    """Return why the answer is rejected. An exception while reading it counts as a reason."""
    try:
        return good(answer)
    except BadReply as error:
        return str(error)
    except Exception as error:
        return f"an answer that cannot be used ({type(error).__name__}: {error})"


def unfit(answer: Mapping[str, Value], site: str, about: str) -> str | None:
    """Return why an answer is not what was asked for, with both values; or None."""
    if reason := answer.get(REFUSED) or answer.get(FAILED):
        return str(reason)
    expected_values = {"site": site, "protocol": PROTOCOL, "about": about}
    for key, expected in expected_values.items():
        if answer.get(key) != expected:
            return (
                f"an answer to something else: {key} {answer.get(key)!r} where {expected!r} was "
                f"asked (unseen {__version__})"
            )
    return None


def whys(faults: Mapping[str, str]) -> str:
    """Return what became of each, to be put behind a message."""
    return "".join(f"; {site}: {why}" for site, why in sorted(faults.items()))
