"""The server's end of Flower's line: the sites by name, one message to each, and its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unseen.engine.messages import Parcel, Value, pack, size
from unseen.errors import UnseenError
from unseen.sites.flower.answers import Judge, check_same, fault_of, introduced, reasons, text_in
from unseen.sites.flower.pulls import ATTEMPTS, SLACK, Node, Pulls, Question
from unseen.sites.flower.terms import ENTRY, FAILED, PROTOCOL, Facts, Refused
from unseen.studies.settings.study import Federation

if TYPE_CHECKING:
    from flwr.serverapp import Grid

LOG = logging.getLogger("flwr")
#: How often the server looks for answers and for sites, in seconds.
POLL, LOOK = 0.2, 2.0
#: How often a site is asked whether it has approved the study, in seconds.
AGAIN = 5.0
#: How long nobody new must come where no site is named, and how long a new one may take to say who
#: it is, in seconds.
QUIET, SETTLED = 10.0, 60.0
#: Bytes that the answer to a `hello` may have.
FACTS = 2**24
KEPT = "Progress up to the last finished round is saved. Run the same command again to resume."


class Waiting(UnseenError):
    """The minimum of sites did not come in time. Nothing is lost: the same command goes on."""


@dataclass
class Link:
    """The sites behind Flower's Grid, by name.

    Attributes:
        grid: Flower's Grid.
        limits: The study's deadline, patience and minimum.
        introduce: The parcel by which a new node is asked who it is.
        tell: Called with whatever changes, for `unseen federation status`.
        nodes: Node -> site, the newest last where two have one name.
        hellos: Message -> the node that was asked who it is.
        facts: What each site says of its data.
        refused: Site -> why it cannot take part.
        final: Node that cannot, whatever is awaited -> the site whose key it has, or that it says
            it is.
        lacking: Site that a run began without -> why.
        keyed: Node that is online -> the name that its key is registered for.
        last_look: When the sites were looked for last.
        undecided: Node that has not approved the study -> when it is asked again.
        agreed: Site -> the digest of the data with which this run began.
        account: Called with the entry of each answer to the first question of all.
        stated: Site -> the most examples that a reply of it may claim.
        absent: Site -> why it is not in the exchange that it was asked for last.
        pulls: The answers on their way.
    """

    grid: Grid
    limits: Federation
    introduce: Parcel
    tell: Callable[..., None] = field(default=lambda **news: None)
    nodes: dict[Node, str] = field(default_factory=dict)
    hellos: dict[str, Node] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    refused: dict[str, Refused] = field(default_factory=dict)
    final: dict[Node, str] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    keyed: dict[Node, str] = field(default_factory=dict)
    last_look: float = -1e9
    undecided: dict[Node, float] = field(default_factory=dict)
    agreed: Mapping[str, str] = field(default_factory=dict)
    account: Callable[[str, str], None] = field(default=lambda site, entry: None)
    stated: Mapping[str, int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    pulls: Pulls = field(init=False)

    def __post_init__(self) -> None:
        self.pulls = Pulls(self.grid)

    def sites(self) -> dict[str, Node]:
        """Return the sites that are there: name -> node, the newest where two have one name."""
        return {name: node for node, name in self.nodes.items() if node in self.keyed}

    def look(self) -> None:
        """See who came and who left, ask those who came who they are, and read their answers."""
        if time.monotonic() - self.last_look >= LOOK:
            self.last_look, before = time.monotonic(), set(self.sites())
            # A node that was started again keeps its number where it has a key, and loses its
            # messages. Its name is what its key was registered for; without keys there is none.
            self.keyed = {(n.node_id, n.last_activated_at): n.name for n in self.grid.get_nodes()}
            self.hellos = {id: node for id, node in self.hellos.items() if node in self.keyed}
            later = {node for node, at in self.undecided.items() if at > time.monotonic()}
            for node in set(self.keyed) - set(self.nodes) - set(self.hellos.values()) - later:
                id = self._push(node, self.introduce, LOOK + self.limits.deadline, "0")
                self.hellos[id] = node
            if set(self.sites()) != before:
                self.tell(connected=sorted(self.sites()))
        for got in self.pulls.arrived({id: (FACTS, n) for id, n in self.hellos.items()}):
            if got.id not in self.hellos:
                continue
            node = self.hellos.pop(got.id)
            answer = got.parcel or {}
            site = text_in(answer, "site") or self.keyed.get(node, "") or "nobody"
            if entry := text_in(answer, ENTRY):
                self.account(site, entry)
            try:
                facts = introduced(got.parcel, got.fault, self.keyed.get(node, ""))
                check_same(facts, self.agreed)
            except Refused as error:
                if error.rule == "approval":
                    self.undecided[node] = time.monotonic() + AGAIN
                    if str(self.refused.get(site)) != str(error):
                        LOG.info("site %s: %s", site, error)
                    self.refused[site] = error
                    continue
                # Never by the name alone that it gives itself: it may be another one's.
                self.nodes[node] = f"(node {node[0]}, which says it is {site})"
                name = self.keyed.get(node) or self.nodes[node]
                self.refused[name], self.final[node] = error, self.keyed.get(node) or site
                LOG.warning("%s cannot take part: %s", name, error)
                self._tell_without()
            else:
                self._let_in(node, facts)

    def _let_in(self, node: Node, facts: Facts) -> None:
        """Count a site among those that take part, whatever it said before it was started again."""
        earlier = [
            n for n, site in self.final.items() if site == facts.site and n not in self.keyed
        ]
        for before in earlier:
            del self.final[before]
            self.refused.pop(self.nodes.get(before, ""), None)
        self.nodes.pop(node, None)
        self.nodes[node] = facts.site  # the newest stands last
        self.refused.pop(facts.site, None)
        if facts.site in self.agreed:
            self.lacking.pop(facts.site, None)
        self.facts[facts.site] = facts
        LOG.info("site %s is here (%s)", facts.site, facts.role)
        self.tell(connected=sorted(self.sites()))
        self._tell_without()

    def _tell_without(self) -> None:
        """Tell who takes no part, and why."""
        final = {name: str(why) for name, why in self.refused.items() if why.rule != "approval"}
        self.tell(without=reasons({**self.lacking, **final}).removeprefix("; "))

    def gather(
        self, expected: Sequence[str], patience: float, alone: float = float("inf"),
        needed: Sequence[str] = (),
    ) -> dict[str, Facts]:  # fmt: skip
        """Wait for the wanted sites, or where none is named for whichever sites connect.

        Who is not there at the end is in `lacking`.

        After `alone` seconds the minimum is enough. Without the `needed` nothing begins, whatever
        the minimum.

        Raises:
            Waiting: Fewer than the minimum are connected at the end of the patience, or one that is
                needed is not; or every site has answered so that waiting does not help.
        """
        minimum, named = self.limits.minimum, {*expected, *needed}
        least, before = min(minimum, len(expected) or minimum), (0, 0)
        start = changed = time.monotonic()
        while True:
            self.look()
            here = [name for name in self.sites() if name in self.facts]
            refusing = [site for node, site in self.final.items() if node in self.keyed]
            now = time.monotonic()
            if (len(here), len(refusing)) != before:
                before, changed = (len(here), len(refusing)), now
            missing, quiet = sorted(named - {*here}), now - changed > QUIET
            complete = not missing and (bool(expected) or (len(here) >= minimum and quiet))
            # Who is here and has not said its name may be a target, for which nobody waits.
            waits = [name for name, why in self.refused.items() if why.rule == "approval"]
            settled = not (self.hellos or waits) or now - changed > SETTLED
            enough = len(here) >= least and not {*needed} & {*missing}
            if (complete and settled) or (enough and now - start > min(alone, patience)):
                self._begin_without(missing)
                self.tell(waiting="", connected=sorted(here))
                return {name: self.facts[name] for name in here}
            if now - start > patience:
                raise self._lacking(here, missing, needed, f"after {patience:g} s")
            # One that is named and away may still come; where none is named, others may.
            many = quiet and len({*here, *refusing}) >= minimum
            hopeless = {*missing} <= {*refusing} if missing else many
            if settled and not waits and not enough and hopeless:
                raise self._lacking(here, missing, needed, "every site has answered:")
            approvals = f"; not yet approved at {', '.join(sorted(waits))}" if waits else ""
            who = ", ".join(missing) or "sites"
            self.tell(waiting=f"for {who}; {len(here)} are here{approvals}")
            time.sleep(POLL)

    def _begin_without(self, missing: Sequence[str]) -> None:
        """Note who is not there when a run begins, or goes on."""
        away = {name: f"{why} at the start" for name, why in self._faults(missing).items()}
        final = {name: str(why).rstrip(".") for name, why in self.refused.items()}
        self.lacking |= {**away, **final}
        self._tell_without()

    def _faults(self, missing: Sequence[str]) -> dict[str, str]:
        """What is the matter with those that have not said it themselves."""
        keys, answered = self.keyed.values(), self.final.values()
        return {
            name: "connected, and has not answered" if name in keys else "not connected"
            for name in missing if name not in answered
        }  # fmt: skip

    def _lacking(
        self, here: Sequence[str], missing: Sequence[str], needed: Sequence[str], when: str
    ) -> Waiting:
        """The error that names who is there, and of each that is not why."""
        least = f"at least {self.limits.minimum} are needed"
        least += f", and the plan needs {', '.join(needed)}" if needed else ""
        who = f"{len(here)} sites are here ({', '.join(here) or 'none'})"
        lacking = f"; missing: {', '.join(missing)}" if missing else ""
        faults = reasons({**self._faults(missing), **self.refused})
        why = f"{when} {who}, {least}{lacking}{faults}."
        remedy = "Start them, let them approve the study, or change what they refuse in it"
        remedy += ", and run the same command again."
        return Waiting(why, remedy=remedy)

    def ask(
        self, kind: str, parcels: Mapping[str, Parcel], about: str, minimum: int, good: Judge,
        group: str, room: int = 0,
    ) -> dict[str, Question]:  # fmt: skip
        """Ask each site; wait until all connected ones have answered or the deadline is over.

        Each answer repeats `about`, so that none is taken for another's. `good` returns what is
        wrong with one, which is then final; its rows may have `room` bytes.

        Raises:
            Waiting: Too few good answers at the end of deadline and patience.

        A site that connects meanwhile is asked as well: a message that arrives twice leads to the
        same answer.
        """
        common: dict[str, Value] = {"kind": kind, "protocol": PROTOCOL, "about": about}
        open = {
            name: Question(name, {**common, **parcel}, room=room + SLACK)
            for name, parcel in parcels.items()
        }
        start = time.monotonic()
        while True:
            self.look()
            for q in open.values():
                self._send(q, group)
            self._receive(open.values(), about, good)
            here = self.sites()
            pending = [q for q in open.values() if q.id or q.again(here)]
            without = [q for q in open.values() if q.answer is None]
            count = len(open) - len(without)
            hopeless = all(q.final for q in open.values())
            now = time.monotonic() - start
            # Where every answer was bad, the round says what that means.
            late = not pending or now > self.limits.deadline
            if (count >= minimum and late) or (hopeless and not count):
                break
            if hopeless or now > self.limits.deadline + self.limits.patience:
                why = f"{about}: {count} of at least {minimum} sites gave a usable answer"
                faults = reasons({q.site: q.standing for q in without})
                raise Waiting(f"{why}{faults}.", remedy=KEPT)
            if pending or count < minimum:
                self.tell(waiting=f"for {', '.join(q.site for q in without if not q.final)}")
            time.sleep(POLL)
        for q in pending:
            q.fault = f"no answer within the deadline of {self.limits.deadline:g} s"
        self._mark(open.values())
        return open

    def _mark(self, asked: Iterable[Question]) -> None:
        """Tell who is missing from an exchange that ends, and whether anybody is back."""
        for q in asked:
            self.absent.pop(q.site, None)
            if q.answer is None:
                self.absent[q.site] = q.fault
        self.tell(waiting="", absent=reasons(self.absent).removeprefix("; "))

    def _send(self, q: Question, group: str) -> None:
        """Ask a site that is there and was not asked, or was started again since."""
        if q.final:
            return
        sites = self.sites()
        node = sites.get(q.site)
        if q.id and node != q.node:
            q.id, q.fault = "", "left within the exchange"
        if node and node != q.node:
            q.attempts = 0  # another start of the site, another try
        if node and q.again(sites):
            ttl = self.limits.deadline + self.limits.patience
            q.node, q.id = node, self._push(node, q.parcel, ttl, group)
            q.sent_at, q.attempts = time.monotonic(), q.attempts + 1

    def _receive(self, questions: Iterable[Question], about: str, good: Judge) -> None:
        """Note the answers that came; one that comes twice finds no question."""
        ids = {q.id: q for q in questions if q.id}
        for got in self.pulls.arrived({id: (q.room, q.node) for id, q in ids.items()}):
            q = ids.pop(got.id, None)
            if q is None:
                continue
            q.id, q.seconds, q.fault = "", time.monotonic() - q.sent_at, got.fault
            if (parcel := got.parcel) is None:
                # A process that was killed, say: the site is asked once more.
                q.final = got.larger
                continue
            q.entry = text_in(parcel, ENTRY)
            q.up, q.fault = size(parcel), fault_of(parcel, q.site, about, good)
            q.final = FAILED not in parcel or q.attempts >= ATTEMPTS
            if q.fault:
                LOG.warning("%s: site %s: %s", about, q.site, q.fault)
            else:
                q.answer = parcel

    def _push(self, node: Node, parcel: Parcel, ttl: float, group: str) -> str:
        from flwr.app import Message

        message = Message(pack(parcel), node[0], "query", ttl=ttl + 60, group_id=group)
        (id,) = self.grid.push_messages([message]) or (None,)
        return str(id or "")
