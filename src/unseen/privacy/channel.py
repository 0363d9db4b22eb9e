"""Channels: what lies between the clients' replies and the server's rules.

A channel has two sides that pass bytes to each other. The site's side seals what leaves a client
and answers the server's questions; the server's side hands the rules rows that it cannot read. The
sides share no object: a server's side is made of public bytes alone. How the bytes get from one to
the other is for subclasses of `unseen.privacy.channelled.Channelled`.
"""

from __future__ import annotations

import json
import re
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from torch import Tensor

from unseen.core import Descend, Method, Slot
from unseen.core.parts import able
from unseen.errors import Incompatible, UnseenError, choice
from unseen.expression import parse, resolve
from unseen.privacy import blind, ckks, masks
from unseen.privacy.channelled import LocalSites
from unseen.privacy.kinds import PRIVATE, PUBLIC, PUBLICS, SECRET, ServerSide, Site
from unseen.privacy.masks import shares
from unseen.ranges import Checked, Range

if TYPE_CHECKING:
    from unseen.engine.inprocess import InProcess

ServerName = Literal["clear", "blind"]
Files = Mapping[str, bytes]


class Channel(ABC):
    """What a study can name as its `privacy.channel`.

    Attributes:
        name: What an error calls it.
        form: In what form a row leaves its site with a reply.
        masked: Whether rows stay at their site until their weights are known, and each site
            remembers which sum of them it helped to open.
        files, server_files: Files of a kit that a site needs, and the server.
    """

    name: ClassVar[str]
    form: ClassVar[str] = "encrypted"
    masked: ClassVar[bool] = False
    files: ClassVar[tuple[str, ...]] = ()
    server_files: ClassVar[tuple[str, ...]] = ()

    @property
    def hides(self) -> bool:
        """Whether the server does not have the rows as they are."""
        return self.form != "plain"

    def unserved(self, slot: Slot, sites: int) -> Iterator[tuple[str, str]]:
        """Yield why a slot cannot work on this channel, and the remedy.

        `sites` is how many train, 0 where this is not known.
        """
        if (rule := slot.combine) is not None and rule.sees == "updates":
            what = "reads every coordinate of every update, which only its client sees"
            yield f"has the rule {type(rule).__name__}, which {what}.", ""

    def fewest(self, count: int, least: int) -> int:
        """Return of how many rows a sum is, at least, that a site opens; 1 where it opens none.

        Args:
            count: Of how many the sum must be where noise protects the sum alone: as many as open
                one of this many.
            least: As the site's own rules have it.
        """
        return 1

    def keys(self, names: Sequence[str], shared: Files) -> tuple[Files, dict[str, Files]]:
        """Return the files of keys: the server's, and each site's by name.

        `names` get new keys. `shared` are the files that other sites have; with masks, all of these
        get a new file of public halves.
        """
        raise UnseenError(f"the channel {self.name!r} has no keys.")

    def site(self, method: Method, name: str, files: Files, job: str = "") -> Site:
        """Return a site's side.

        `files` are its own, and `job` is the run that sealed states belong to.
        """
        raise UnseenError(f"the channel {self.name!r} has no side at a site.")

    def server(self, files: Files) -> ServerSide:
        """Return the server's side, from public files alone."""
        raise UnseenError(f"the channel {self.name!r} has no side at the server.")

    def seen_by_server(self, rows: Tensor) -> list[bytes | Tensor]:
        """Return what the server holds of each row of [K, P], under keys made and lost here."""
        return list(rows)


@dataclass(frozen=True)
class Clear(Channel):
    """Everything as it is."""

    name = "clear"
    form = "plain"


@dataclass(frozen=True)
class CKKS(Channel):
    """Encrypted rows, see `unseen.privacy.ckks`.

    Attributes:
        gram: Inner products for the rules that need them: `exact`, or of a `sketch(m)`, a public
            random projection to m numbers.
    """

    name = "ckks"
    files = (SECRET,)
    server_files = (PUBLIC,)
    gram: str = "exact"

    def __post_init__(self) -> None:
        if self.gram != "exact" and not self.width:
            form = "'exact' or 'sketch(m)' with m from 16 to 1048576, such as 'sketch(4096)'"
            raise UnseenError(f"ckks(gram) must be {form}; found {self.gram!r}.")

    @property
    def width(self) -> int:
        """m; 0 for exact inner products."""
        match = re.fullmatch(r"sketch\((\d{2,7})\)", self.gram.replace(" ", ""))
        width = int(match[1]) if match else 0
        return width if 16 <= width <= 1 << 20 else 0

    def unserved(self, slot: Slot, sites: int) -> Iterator[tuple[str, str]]:
        yield from super().unserved(slot, sites)
        rule = slot.combine
        if rule is not None and rule.sees == "products" and self.width and rule.blocks != "whole":
            what = "asks for inner products of every layer, and a sketch is of the whole vector"
            remedy = "Take gram='exact', or blocks='whole'."
            yield f"has the rule {type(rule).__name__}, which {what}.", remedy

    def keys(self, names: Sequence[str], shared: Files) -> tuple[Files, dict[str, Files]]:
        fresh = ckks.make_keys() if SECRET not in shared else None
        secret, public = fresh or (shared[SECRET], shared[PUBLIC])
        both: Files = {SECRET: secret, PUBLIC: public}
        return {PUBLIC: public}, dict.fromkeys(names, both)

    def site(self, method: Method, name: str, files: Files, job: str = "") -> Site:
        return ckks.Site(method, name, files, self.width)

    def server(self, files: Files) -> ServerSide:
        return ckks.Server(files, self.width)

    def seen_by_server(self, rows: Tensor) -> list[bytes | Tensor]:
        secret, _ = ckks.make_keys()
        return [ckks.encrypt(secret, row, {}) for row in rows]


@dataclass(frozen=True)
class Blind(CKKS):
    """The same for a server that never holds the model, see `unseen.privacy.blind`."""

    name = "blind"

    def unserved(self, slot: Slot, sites: int) -> Iterator[tuple[str, str]]:
        yield from super().unserved(slot, sites)
        if (rule := slot.combine) is not None and rule.sees == "products":
            why = f"has the rule {type(rule).__name__}, which needs inner products. No site can"
            why += " check what a server multiplied, and a server that lies reads updates by them."
            yield why, "Take a rule of scalars, such as fedavg, or privacy.server = 'clear'."
        by = slot.apply.optimiser if isinstance(slot.apply, Descend) else slot.apply
        if by is not None and not able(by, "at_sites"):
            why = f"is applied by {type(by).__name__}. A server that cannot read the sum cannot"
            why += " take its squares, roots and quotients, and a site that missed one would"
            steps = '"add" or "sgd(lr=1, momentum=0.9)"'
            yield f"{why} diverge.", f'Take training.server = {steps}, or server = "clear".'

    def site(self, method: Method, name: str, files: Files, job: str = "") -> Site:
        return blind.Site(method, name, files, job)

    def server(self, files: Files) -> ServerSide:
        return blind.Server(files)


@dataclass(frozen=True)
class Masks(Checked, Channel, named="masks"):
    """Rows under masks that cancel in the sum, see `unseen.privacy.masks`.

    Attributes:
        step: Values are rounded to multiples of 2^-step.
        quorum: Fewest clients of one sum.
        threshold: More than this share of the clients of a sum must help to open it: so many and
            the server must work together to open a row, and so many must stay.
    """

    name = "masks"
    form = "header"  # the row itself is masked once its weight is known
    masked = True
    files = (PRIVATE, PUBLICS)
    step: Annotated[int, Range(8, 52)] = 40
    quorum: Annotated[int, Range(2)] = 2
    threshold: Annotated[float, Range(0.5, 0.999)] = 2 / 3

    def unserved(self, slot: Slot, sites: int) -> Iterator[tuple[str, str]]:
        yield from super().unserved(slot, sites)
        if (rule := slot.combine) is not None and rule.sees == "products":
            why = "needs inner products of the updates, and a sum under masks has none"
            yield f"has the rule {type(rule).__name__}, which {why}.", "Take the channel ckks."
        count = sites if slot.view is None else slot.view.size(sites)
        if sites and slot.follows is None and count < self.quorum:
            why, remedy = f"is a sum of {count} of the {sites} sites", "Add sites."
            if slot.view is not None and slot.view.folds != ():
                why += ", where a group of sites is left out"
                remedy = "Add sites, or leave fewer out at a time with a larger groups = G."
            hidden = f"masks hide a site's row in a sum of at least {self.quorum}"
            yield f"{why}, and {hidden}.", remedy

    def fewest(self, count: int, least: int) -> int:
        few = max(self.quorum, least)
        return max(few, shares.least(self.threshold, count, few))

    def keys(self, names: Sequence[str], shared: Files) -> tuple[Files, dict[str, Files]]:
        halves: dict[str, str] = json.loads(shared.get(PUBLICS, b"{}"))
        own: dict[str, Files] = {name: {} for name in halves}
        for name in names:
            private, public = masks.make_keys()
            own[name], halves[name] = {PRIVATE: private}, public.hex()
        publics = json.dumps(halves, indent=2, sort_keys=True).encode() + b"\n"
        return {}, {name: {**one, PUBLICS: publics} for name, one in own.items()}

    def site(self, method: Method, name: str, files: Files, job: str = "") -> Site:
        return masks.Site(method, name, files, self.quorum, self.threshold, self.step)

    def server(self, files: Files) -> ServerSide:
        return masks.Server(self.quorum, self.threshold, self.step)

    def seen_by_server(self, rows: Tensor) -> list[bytes | Tensor]:
        return masks.exposed(rows, self.step)


CHANNELS: Mapping[str, Callable[..., Channel]] = {"clear": Clear, "ckks": CKKS, "masks": Masks}


def read(expression: str, server: ServerName = "clear") -> Channel:
    """Return the channel that an expression names: `clear`, `ckks(gram='exact')` or `masks()`."""
    calls = parse(expression)
    if len(calls) != 1:
        raise UnseenError(f"a study has one channel; found {len(calls)} joined by +.")
    kind = resolve("channel", calls[0], CHANNELS)
    assert isinstance(kind, Channel)
    choice("privacy.server", server, ("clear", "blind"))
    if server == "clear":
        return kind
    if isinstance(kind, CKKS):
        return Blind(**asdict(kind))
    what = f"privacy.server = 'blind' needs privacy.channel = 'ckks'; found {expression!r}"
    raise UnseenError(f"{what}, with which the server reads every sum of updates.")


def check(kind: Channel, method: Method, sites: int = 0) -> None:
    """Refuse, before the run, a method that the channel or the server cannot serve.

    `sites` is how many train, once the method is completed for them.
    """
    if not kind.hides:
        return
    name = f"{method.name}+{kind.name}"
    if method.gather is not None:
        raise Incompatible(
            name, "it pools all data at one client, whose update is the only one of its sum."
        )
    for exchange in method.exchanges:
        for label, slot in exchange.slots.items():
            for why, remedy in kind.unserved(slot, sites):
                what = f"the slot {label!r} of the exchange {exchange.name!r} {why}"
                raise Incompatible(name, what, remedy=remedy)


def wrap(kind: Channel, method: Method, backend: InProcess, names: Sequence[str]) -> LocalSites:
    """Return the in-process backend behind the channel, with keys made here for this run.

    `names` are all who take part, those who only evaluate included.
    """
    check(kind, method)
    public, private = kind.keys(names, {})
    sites = {name: kind.site(method, name, private[name]) for name in names}
    return LocalSites(backend, sites, partial(kind.server, public))
