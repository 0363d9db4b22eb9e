"""Which exchange of which round it is, and for whom: the source of all randomness."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unseen.core.types import Table


@dataclass(frozen=True)
class Turn:
    """Which exchange of which round this is, and for whom; the source of all randomness.

    Attributes:
        seed: The job's seed.
        round: The round, counted from 0.
        rounds: The number of rounds in all.
        exchange: The exchange's name.
        client: The client's name; empty at the server.
        order: The exchange's position in its round. It does not enter a key.
        roster: The names of all clients of the study, sorted. They do not enter a key.
        question: At a real site, under noise, the digest of all that it was asked. It enters no key
            but that of the noise.
    """

    seed: int
    round: int
    rounds: int
    exchange: str = ""
    client: str = ""
    order: int = 0
    roster: tuple[str, ...] = ()
    question: str = ""

    @property
    def index(self) -> int:
        """This client's row in entries gathered by `Collect`; −1 for nobody of the roster."""
        return self.roster.index(self.client) if self.client in self.roster else -1

    def at(self, client: str) -> "Turn":
        """Return the turn of a client; written out, since `replace` takes twice as long."""
        return Turn(
            self.seed, self.round, self.rounds, self.exchange, client, self.order, self.roster,
            self.question,
        )  # fmt: skip

    def key(self, purpose: str) -> str:
        """Return the key of a purpose's draws: no purpose, client or round shares one."""
        return "/".join(map(str, (self.seed, purpose, self.round, self.exchange, self.client)))

    def generator(self, purpose: str) -> torch.Generator:
        """Return a fresh generator of a purpose's draws."""
        return keyed(self.key(purpose))


def keyed(key: str) -> torch.Generator:
    """Return a CPU generator whose stream depends on the text `key` alone."""
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def other_seed(seed: int, m: int) -> int:
    """Return the m-th other seed of a job; 0 is its own."""
    return seed + 1000 * m


@dataclass(frozen=True)
class View:
    """What one of several federations in an exchange sees of its table, as if it were alone.

    Attributes:
        key: What the names of its slots and scalars end with.
        exchange: What its exchange is called where it is alone.
        seed: Which other seed it draws by.
        rounds: How many rounds it takes; None: as many as all.
        folds: (g, G), ...: the clients at places g, g + G, ... of the roster stay out of it; each
            further pair counts places among those left by the pairs before it.
        begin: The round of all that is its first.
    """

    key: str
    exchange: str
    seed: int = 0
    rounds: int | None = None
    folds: tuple[tuple[int, int], ...] = ()
    begin: int = 0

    def size(self, K: int) -> int:
        """Return how many of a roster of K take part."""
        for g, G in self.folds:
            K -= len(range(g, K, G))
        return K

    def table(self, table: Table) -> Table:
        """Return the scalars of its clients under their own names, its own places and progress."""
        own = {n.removesuffix(self.key): v for n, v in table.items() if n.endswith(self.key)}
        shared = {n: table[n] for n in ("client", "progress", "rounds") if n in table}
        if self.rounds is not None and "rounds" in shared:
            round = (shared["progress"] * shared["rounds"]).round()
            own_rounds = float(self.rounds)
            shared["progress"] = (round - self.begin) / own_rounds
            shared["rounds"] = torch.full_like(round, own_rounds)
        whole = {**shared, **own}
        if not self.folds or "client" not in table:
            return whole
        there, places = self.places(table["client"])
        return {name: values[there] for name, values in {**whole, "client": places}.items()}

    def draws(self, turn: Turn, slot: str) -> torch.Generator:
        """Return the generator of a slot's rule."""
        seed, round = other_seed(turn.seed, self.seed), turn.round - self.begin
        own = replace(turn, seed=seed, round=round, exchange=self.exchange)
        return own.generator(f"rule/{slot.removesuffix(self.key)}")

    def places(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return who of the clients at places [K] takes part, and their places among those.

        A place below 0, of somebody who is not on the roster, is in no fold and stays as it is.
        """
        there = torch.ones_like(places, dtype=torch.bool)
        for g, G in self.folds:
            there = there & ((places < 0) | (places % G != g))
            places = torch.where(places < 0, places, places - (places - g + G - 1) // G)
        return there, places

    def spread(self, weights: Tensor, table: Table) -> Tensor:
        """Return weights [..., K] of all who are in the table, 0 for those who stay out."""
        if weights.shape[-1] == len(table["client"]):
            return weights
        full = weights.new_zeros((*weights.shape[:-1], len(table["client"])))
        full[..., self.present(table)] = weights
        return full

    def present(self, table: Table) -> Tensor:
        """Return the rows [k] of the table whose clients take part."""
        there, _ = self.places(table["client"])
        return there.nonzero()[:, 0]
