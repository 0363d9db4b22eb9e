"""Differential privacy by clipping and noise: of single examples (DP-SGD), or of whole clients.

Both are put on at the client, around the method that a study names, so that whoever receives a
reply, the server first, receives what is noised already. What a method sends besides its clipped
and noised rows is refused or left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from unseen.client import Client
from unseen.combine.base import Gram, RuleState, Table, Weighted
from unseen.errors import UnseenError, choice, number
from unseen.exchange import Exchange, Inbox, Local, Memory, Method, Reply, Slot, Turn
from unseen.expression import parse, resolve
from unseen.gradient import Backprop, LocalAlignment, Proximal, Step
from unseen.gradient.accumulation import Accumulated
from unseen.gradient.fedgala import Remember
from unseen.gradient.scaffold import Controlled, Controls
from unseen.local import FullGradient, Train
from unseen.losses import Loss
from unseen.methods.base import TRAIN, trained, with_exchange
from unseen.privacy.clipped import clipped_sum, linear, output_loss
from unseen.privacy.stream import KEY, SECRET, keyed_memory, stream
from unseen.round import sample
from unseen.training import Training
from unseen.vector import Blocks, Layout, Model

#: What a client may report beside noised rows: it follows from the size of its training split,
#: which counts as public, and from the study.
PUBLIC = frozenset({"examples", "steps", "accumulated"})
#: What the server itself adds to the table.
SERVERS = frozenset({"client", "progress", "rounds", "prior"})


@dataclass(frozen=True)
class Examples:
    """DP-SGD: g ← (Σ_n min(1, C / ‖g_n‖) g_n + σ C ξ) / B, ξ ~ N(0, 1) in each coordinate.

    clip: C, the most that one example's gradient may measure. noise: σ, in units of C. delta: the
    δ that ε is stated for; below one over a client's number of examples. chunk: how many
    examples' gradients are formed at a time where the network is not of linear layers alone. B:
    the training's batch size; every example is in a step's batch with probability B / n, by a
    draw of its own (Poisson sampling), as the accountants assume. seed: for tests only; noise
    and batches then follow from it, and nothing is protected.

    Source: Abadi et al. 2016, "Deep Learning with Differential Privacy", Algorithm 1, with sums
    divided by the expected batch size as there.
    """

    clip: float
    noise: float
    delta: float
    chunk: int = 16
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("examples", self.clip, self.noise, self.delta)
        number("dp(chunk)", self.chunk, 1, whole=True)


@dataclass(frozen=True)
class Clients:
    """Every row that a client sends: u ← min(1, C / ‖u‖) u + s ξ.

    clip: C. noise: σ, in units of C. delta: as for `Examples`. trust: `"nobody"`, s = σ C, so that
    each row is private before anybody sees it, the server included; or `"sum"`, s = σ C / √K with
    K the clients of a round, so that only their sum is: for channels in which the server sees no
    more than that. seed: for tests only.

    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", with
    the noise put on by the clients; the sum of K shares of it is Kairouz et al. 2021.
    """

    clip: float
    noise: float
    delta: float
    trust: Literal["nobody", "sum"] = "nobody"
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("clients", self.clip, self.noise, self.delta)
        choice("dp(trust)", self.trust, ("nobody", "sum"))

    def deviation(self, clients: int) -> float:
        """s, the noise's standard deviation in each coordinate of one client's row."""
        if not self.noise:
            return 0.0
        return self.noise * self.clip / (math.sqrt(clients) if self.trust == "sum" else 1.0)


def read(examples: str, clients: str) -> tuple[Examples | None, Clients | None]:
    """The study's two settings, `dp(clip=1.0, noise=1.1, delta=1e-5)` or nothing."""

    def one(text: str, kind: type[Any], where: str) -> Any:
        if not text:
            return None
        calls = parse(text)
        if len(calls) != 1:
            raise UnseenError(f"privacy.{where} takes one dp(...); found {text!r}.")
        return resolve(f"noise of privacy.{where}:", calls[0], {"dp": kind})

    return one(examples, Examples, "examples"), one(clients, Clients, "clients")


def private(
    method: Method,
    examples: Examples | None = None,
    clients: Clients | None = None,
    participation: float | int = 1.0,
    summed: bool = False,
) -> Method:
    """The method with its clients' noise; refused with the reason where no bound would hold.

    participation: of a round, as in the study. summed: whether the channel shows the server no
    more than sums of rows.
    """
    if examples is not None:
        method = with_example_noise(method, examples)
    if clients is not None:
        method = with_client_noise(method, clients, participation, summed)
    return method


# Single examples.


@dataclass(frozen=True)
class Noised:
    """The gradient of DP-SGD in `Backprop`'s place; see `Examples`.

    expected: B, the expected size of a batch; None where the whole training split is one.
    """

    loss: Loss
    dp: Examples
    expected: int | None = None

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        """Steps whose noise comes from the client's secret; to be opened once per exchange."""
        loss = output_loss(self.loss, "dp")
        size = self.expected or len(client.split("train"))
        draws, deviation = stream(memory, "gradient"), self.dp.noise * self.dp.clip
        algebra = linear(model)

        def step(x: Tensor, y: Tensor) -> Tensor:
            nonlocal algebra
            value = clipped_sum(model, loss, x, y, self.dp.clip, self.dp.chunk, algebra)
            if self.dp.noise:
                noise = draws.normal(len(model.gradient)) * deviation
                # Added in float64 and rounded once.
                model.gradient.copy_(model.gradient.double() + noise.to(model.device))
            model.gradient.div_(size)
            return value

        yield step


@dataclass(frozen=True)
class Poisson:
    """Batches of independent draws: every example with probability B / n, in every step.

    As many steps as shuffled batches would be; a batch may be of any size, 0 included. Whose
    example was drawn is secret, since that is what amplifies the privacy of a batch.
    """

    def __call__(
        self, count: int, recipe: Training, memory: Memory, turn: Turn
    ) -> Iterator[Tensor]:
        draws, rate = stream(memory, "batches"), rate_of(count, recipe)
        for _ in range(steps_of(count, recipe)):
            yield torch.from_numpy((draws.uniform(count) < rate).nonzero()[0])


def rate_of(count: int, recipe: Training) -> float:
    """The probability B / n with which an example is in a step's batch."""
    return min(1.0, recipe.batch_size / count)


def steps_of(count: int, recipe: Training) -> int:
    """Steps of one exchange with Poisson batches: those of as many passes over shuffled ones."""
    if recipe.steps is not None:
        return recipe.steps
    whole, rest = divmod(count, recipe.batch_size)
    return (recipe.epochs or 0) * max(1, whole + (1 if rest and not recipe.drop_last else 0))


@dataclass(frozen=True)
class Guarded:
    """Another local with the client's secret at hand, whose reply keeps only what is public.

    Left out: every scalar but the number of examples, of steps and what follows from them. The
    mean training loss is among what is left out.
    """

    local: Local
    dp: Examples

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """The other local's rows, which the noise inside has made private."""
        ready = keyed_memory(memory, inbox, turn, self.dp.seed)
        reply, after = self.local(model, inbox, client, ready, turn)
        public = {name: value for name, value in reply.scalars.items() if name in PUBLIC}
        return Reply(reply.rows, public), _kept(after, ready)


#: Locals and gradients that touch the data through the noised step alone.
LOCALS: tuple[type[Any], ...] = (Train, FullGradient, Controls, Accumulated, Remember)
GRADIENTS: tuple[type[Any], ...] = (Backprop, Proximal, Controlled, LocalAlignment)


def with_example_noise(method: Method, dp: Examples) -> Method:
    """The method whose clients train by DP-SGD; all else of it must follow from that."""
    name = f"{method.name}+dp"
    for exchange in method.exchanges:
        if exchange.slots and exchange.name != TRAIN:
            what = ", ".join(method.shares) or exchange.name
            raise UnseenError(
                f"{name} cannot be: the exchange {exchange.name!r} sends what is computed from the "
                f"data outside the clipped and noised steps ({what})."
            )
    exchange = trained(method)
    check_scalars(name, exchange, PUBLIC)
    local = Guarded(_noised_local(exchange.local, dp, name), dp)
    return with_exchange(method, replace(exchange, local=local))


def check_scalars(name: str, exchange: Exchange, allowed: frozenset[str]) -> None:
    """Refuse rules that read what a private client does not report."""
    for slot in exchange.slots.values():
        needs = slot.combine.all_needs() if slot.combine is not None else ()
        if lacking := sorted({*needs} - allowed - SERVERS):
            hint = "; take weights='uniform'" if "examples" in lacking else ""
            raise UnseenError(
                f"{name} cannot be: its weights depend on the clients' data through what they "
                f"report ({', '.join(lacking)}), on which there is no noise{hint}."
            )


def _noised_local(local: Any, dp: Examples, name: str) -> Local:
    """The local with the noised gradient inside; refused if it reads the data by itself."""
    if type(local) not in LOCALS or (isinstance(local, Controls) and local.option == 1):
        option = " with option 1" if isinstance(local, Controls) else ""
        raise UnseenError(
            f"{name} cannot be: {type(local).__name__}{option} looks at the client's examples "
            "outside the clipped and noised steps, which the guarantee does not cover."
        )
    if hasattr(local, "local"):
        wrapped: Local = replace(local, local=_noised_local(local.local, dp, name))
        return wrapped
    expected = local.training.batch_size if isinstance(local, Train) else None
    gradient = _noised_gradient(local.gradient, dp, expected, name)
    if isinstance(local, Train):
        training = replace(local.training, sampling=Poisson())
        return replace(local, gradient=gradient, training=training)
    full: Local = replace(local, gradient=gradient)
    return full


def _noised_gradient(gradient: Any, dp: Examples, expected: int | None, name: str) -> Any:
    if type(gradient) not in GRADIENTS:
        raise UnseenError(
            f"{name} cannot be: {type(gradient).__name__} makes more of a batch than the sum of "
            "its examples' gradients, and no bound on one example's part of that is known here."
        )
    if isinstance(gradient, Backprop):
        output_loss(gradient.loss, name)
        return Noised(gradient.loss, dp, expected)
    return replace(gradient, inner=_noised_gradient(gradient.inner, dp, expected, name))


# Whole clients.


@dataclass(frozen=True)
class NoisedRows:
    """Another local whose rows leave clipped, all together, and noised; see `Clients`.

    slots: slot -> the inbox entry that it writes; differences all of them. No scalar leaves.
    """

    local: Local
    dp: Clients
    slots: Mapping[str, str]
    participation: float | int = 1.0

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """The noised rows; the model stays as it was trained."""
        ready = keyed_memory(memory, inbox, turn, self.dp.seed)
        reply, after = self.local(model, inbox, client, ready, turn)
        own = {"model": model.vector, "buffers": model.buffers}
        rows = {
            name: (reply.rows[name] if name in reply.rows else own[name] - inbox[to]).double()
            for name, to in self.slots.items()
        }
        length = math.sqrt(sum(float(row.square().sum()) for row in rows.values()))
        factor = min(1.0, self.dp.clip / length) if length else 1.0
        deviation = self.dp.deviation(self.count(turn))
        draws = stream(ready, f"rows of {turn.exchange}")
        sent = {}
        for name, row in rows.items():
            noised = row * factor
            if deviation:
                noised += (draws.normal(row.numel()) * deviation).to(row.device)
            sent[name] = noised.to(inbox[self.slots[name]].dtype)
        return Reply(sent), _kept(after, ready)

    def count(self, turn: Turn) -> int:
        """How many clients a round of this study has, K."""
        nobody = replace(turn, client="")
        return len(sample(turn.roster, self.participation, nobody)) if turn.roster else 1


def with_client_noise(
    method: Method, dp: Clients, participation: float | int = 1.0, summed: bool = False
) -> Method:
    """The method whose clients' rows are private as wholes, and rules that know of the noise."""
    name = f"{method.name}+dp"
    if dp.trust == "sum" and not summed:
        raise UnseenError(
            f"{name} cannot be: trust='sum' shares the noise among the clients, which protects "
            "their sum alone, and on this channel the server sees each row. Set privacy.channel "
            "to masks, or take trust='nobody'."
        )
    exchanges = [
        _noised_exchange(method, exchange, dp, participation) if exchange.slots else exchange
        for exchange in method.exchanges
    ]
    return replace(method, exchanges=tuple(exchanges))


def _noised_exchange(
    method: Method, exchange: Exchange, dp: Clients, participation: float | int
) -> Exchange:
    name = f"{method.name}+dp"
    for slot_name, slot in exchange.slots.items():
        if slot_name not in ("model", "buffers") or slot.sends != "difference":
            what = ", ".join(method.shares) or slot_name
            raise UnseenError(
                f"{name} cannot be: in the exchange {exchange.name!r} a client sends {slot_name!r} "
                f"({what}), which is no update of the model that one bound C could hold for."
            )
    check_scalars(name, exchange, frozenset())
    slots = {n: _knowing(slot, dp, name) for n, slot in exchange.slots.items()}
    entries = {n: slot.to or n for n, slot in exchange.slots.items()}
    local = NoisedRows(exchange.local, dp, entries, participation)
    return replace(exchange, local=local, slots=slots)


def _knowing(slot: Slot, dp: Clients, name: str) -> Slot:
    """The slot with a rule that takes the known noise off; refused if only the sum is private."""
    rule = slot.combine
    if rule is not None and dp.trust == "sum" and not isinstance(rule, Weighted):
        raise UnseenError(
            f"{name} cannot be: with trust='sum' only the sum of all updates is private, and the "
            f"weights of {type(rule).__name__} depend on single ones. Take a mean with uniform "
            "weights, or trust='nobody', after which every rule works on what is private already."
        )
    if rule is not None and rule.sees == "products" and dp.noise:
        return replace(slot, combine=Denoised(rule, dp.deviation(1)))
    return slot


@dataclass(frozen=True)
class Denoised(Gram):
    """A rule of inner products on noised rows: the noise's part, s² P_b, is taken off the diagonal.

    Row i is u_i + s ξ_i with ξ_i ~ N(0, 1)^P, so that E <., .> = <u_i, u_j> + [i = j] s² P_b over a
    block of P_b columns: the other inner products are right on average, and norms would be too
    large. What is left of a squared norm is at least s² √(2 P_b), one standard deviation of the
    noise's own, below which nothing is known of it. deviation: s.
    """

    inner: Any
    deviation: float

    @property
    def blocks(self) -> Blocks:  # type: ignore[override]
        """Those of the rule."""
        found: Blocks = self.inner.blocks
        return found

    @property
    def source(self) -> Weighted | None:
        found: Weighted | None = self.inner.source
        return found

    def all_needs(self) -> tuple[str, ...]:
        return tuple(self.inner.all_needs())

    def init(self, K: int, P: int, layout: Layout | None = None) -> RuleState:
        """The rule's own state, and how wide the blocks are."""
        state = dict(self.inner.init(K, P, layout))
        bounds = state.get("blocks", [(0, P)])
        return {**state, "widths": [stop - start for start, stop in bounds]}

    def weights(
        self,
        gram: Tensor,
        table: Table,
        state: RuleState,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, RuleState]:
        """The rule's weights for inner products as they would be without the noise."""
        widths = torch.tensor(state["widths"], dtype=torch.float64)
        widths = widths if gram.ndim == 3 else widths[0]
        cleaned, variance = gram.clone(), self.deviation**2
        diagonal = cleaned.diagonal(dim1=-2, dim2=-1)
        floor = variance * (2 * widths).sqrt()
        diagonal.copy_(torch.maximum(diagonal - (variance * widths)[..., None], floor[..., None]))
        weights, inner = self.inner.weights(cleaned, table, state, generator)
        return weights, {**inner, "widths": state["widths"]}

    def mix(
        self, gram: Tensor, table: Table, state: RuleState, generator: torch.Generator | None
    ) -> tuple[Tensor, RuleState]:
        found: tuple[Tensor, RuleState] = self.inner.mix(gram, table, state, generator)
        return found


def mechanism(local: Any, kind: type[Any]) -> Any:
    """The `Guarded` or `NoisedRows` among a local's wrappers, or None."""
    while local is not None:
        if isinstance(local, kind):
            return local
        local = getattr(local, "local", None)
    return None


def _kept(after: Memory, ready: Memory) -> Memory:
    """The memory with the secret, without the key of an exchange that is over."""
    return {**{n: v for n, v in after.items() if n != KEY}, SECRET: ready[SECRET]}


def _check(where: str, clip: object, noise: object, delta: object) -> None:
    if clip != math.inf:
        number(f"privacy.{where}: dp(clip)", clip, 0, open_low=True)
    number(f"privacy.{where}: dp(noise)", noise, 0)
    number(f"privacy.{where}: dp(delta)", delta, 0, 1, open_low=True)
    if clip == math.inf and noise:
        raise UnseenError(
            f"privacy.{where}: noise is in units of clip, which must be finite unless noise is 0."
        )
