"""Local training: the only loop over batches, and what adds to its reply."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, Turn
from unseen.core.global_draws import global_draws
from unseen.core.metrics.evaluation import accuracy, forward
from unseen.core.metrics.evaluation import loss as mean_loss
from unseen.core.parts import Part, Wrapper, layers
from unseen.methods.gradient import Gradient
from unseen.methods.local.batches import batches
from unseen.methods.local.in_parts import in_parts
from unseen.methods.recipe import Training


@runtime_checkable
class Descent(Protocol):
    """A local that descends a gradient, without wrappers."""

    @property
    def gradient(self) -> Gradient: ...


@dataclass(frozen=True)
class Train(Part):
    """E epochs or T steps of the training's optimiser on what the gradient leaves.

    It reports `examples` (of the training split), `steps` taken and the mean `loss` on the way.

    Attributes:
        gradient: What each step descends.
        training: The recipe.
    """

    clips_per_example = True
    stackable = True

    gradient: Gradient
    training: Training

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        recipe, split = self.training, client.split("train")
        lr = recipe.optimiser.lr * recipe.schedule(turn.round, turn.rounds)
        moments = {k[10:]: v.clone() for k, v in memory.items() if k.startswith("optimiser.")}
        if recipe.buffers == "local" and "buffers" in memory:
            model.buffers.copy_(memory["buffers"])
        steps, examples, total = 0, 0, torch.zeros((), device=model.device)
        draws = turn.generator("augment")
        model.module.train()
        indices = (
            recipe.sampling(len(split), recipe, memory, turn)
            if recipe.sampling is not None
            else batches(split, recipe, turn)
        )
        with drawing(turn), self.gradient.open(model, inbox, client, memory, turn) as step:
            for index in indices:
                x, y = split.batch(index.to(model.device))
                if recipe.augment is not None and len(y):
                    x = recipe.augment(x, draws)
                total += step(x, y) * len(y)
                moments = dict(recipe.optimiser.step(model.vector, model.gradient, moments, lr))
                steps, examples = steps + 1, examples + len(y)
        rest = {k: v for k, v in memory.items() if not k.startswith("optimiser.")}
        if recipe.keep_optimiser:
            rest |= {f"optimiser.{name}": value for name, value in moments.items()}
        if recipe.buffers == "local":
            rest["buffers"] = model.buffers.clone()
        scalars = {"examples": len(split), "steps": steps, "loss": float(total) / max(1, examples)}
        return Reply({"model": model.vector, "buffers": model.buffers}, scalars), rest


@dataclass(frozen=True)
class FullGradient(Part):
    """One gradient over the whole training split, sent as −g; the server's optimiser steps.

    Attributes:
        gradient: What is sent, at the received model.
        chunk: The most examples that pass at a time; see `in_parts`.

    Source:
        McMahan et al. 2017, FedSGD.
    """

    clips_per_example = True

    gradient: Gradient
    chunk: int | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        asked = model, inbox, client, memory, turn
        loss = whole_gradient(self.gradient, *asked, chunk=self.chunk)
        scalars = {"examples": len(client.split("train")), "steps": 1, "loss": float(loss)}
        rows = {"model": -model.gradient, "buffers": model.buffers}
        return Reply(rows, scalars), memory


class Statistic(Protocol):
    """Opened once per exchange at one client; then (x, y) -> a vector that may be sent."""

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Callable[[Tensor, Tensor], Tensor]: ...


@dataclass(frozen=True)
class Measure(Part):
    """Sends a statistic of the received model, in training mode, on the whole training split.

    Attributes:
        name: The slot.
        statistic: What is sent.
        chunk: The most examples that pass at a time; see `in_parts`.
    """

    name: str
    statistic: Statistic
    chunk: int | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        split = client.split("train")
        model.module.train()
        with drawing(replace(turn, exchange="")):
            value = self._value(model, inbox, client, memory, turn).detach()
        return Reply({self.name: value}, {"examples": len(split)}), memory

    def _value(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Tensor:
        split = client.split("train")
        whole = in_parts(self.statistic, model, inbox, client, memory, turn, self.chunk)
        if whole is not None:
            return whole
        measure = self.statistic.open(model, inbox, client, memory, turn)
        return measure(*split.batch(slice(None)))


@dataclass(frozen=True)
class Reports(Wrapper):
    """Another local that adds scalars of the received model to its reply.

    Attributes:
        inner: the other local.
        measure: (model, client) -> the scalars by name, before the other local runs.
        on: The split that they are of.
    """

    stackable = True

    inner: Local
    measure: Callable[[Model, Client], Mapping[str, float | Tensor]]
    on: Literal["train", "validation"] = "train"

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        scalars = self.measure(model, client)
        reply, memory = self.inner(model, inbox, client, memory, turn)
        return Reply(reply.rows, {**reply.scalars, **scalars}), memory


def reads_validation(local: Local) -> bool:
    """Return whether a reply of the local says something of the rows that are held back."""
    return any(getattr(part, "on", "train") == "validation" for part in layers(local))


class ReportsReceived(Reports):
    """Scalars of the model as the server sent it, without a client's own part of it."""

    stackable = True
    outermost = True


def received_loss(model: Model, client: Client) -> dict[str, float]:
    """Return the received model's loss on the training split, in evaluation mode."""
    split = client.split("train")
    return {"received_loss": mean_loss(forward(model, split), split.y)}


@dataclass(frozen=True)
class Penalised(Wrapper):
    """Another local that adds a penalty's gradient at the received model to its reply.

    It is the row `penalty`, −∇ over the whole training split, with its value as a scalar.

    Attributes:
        inner: The other local.
        penalty: The gradient of the penalty.
        warmup: Rounds in which both are 0.
        chunk: The most examples that pass at a time; see `in_parts`.
    """

    inner: Local
    penalty: Gradient
    warmup: int = 0
    chunk: int | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        row, value = torch.zeros_like(model.vector), 0.0
        if turn.round >= self.warmup:
            asked = model, inbox, client, memory, turn
            value = float(whole_gradient(self.penalty, *asked, aside=True, chunk=self.chunk))
            row = -model.gradient
        reply, memory = self.inner(model, inbox, client, memory, turn)
        return Reply({**reply.rows, "penalty": row}, {**reply.scalars, "penalty": value}), memory


@dataclass(frozen=True)
class GapProbe(Wrapper):
    """Another local that adds the generalization gap to its reply.

        gap = risk of the received model − risk of the client's own after its last local training

    It is positive when the average serves the client worse.

    Note:
        Both risks are in evaluation mode. `gap_known` is 0 until there is a last local training.

    Attributes:
        inner: The other local.
        gap: The risk: the loss, as in the paper, or the error rate (`"accuracy"`), as in GA's code.
        on: The split; the paper takes the training split, its released code the validation split.

    Source:
        GA §3.3.
    """

    stackable = True

    inner: Local
    gap: Literal["loss", "accuracy"] = "loss"
    on: Literal["train", "validation"] = "train"

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        received = self._risk(model, client)
        has_gap = "gap.own" in memory
        gap = received - float(memory["gap.own"]) if has_gap else 0.0
        rest: Memory = {name: value for name, value in memory.items() if name != "gap.own"}
        reply, rest = self.inner(model, inbox, client, rest, turn)
        own = torch.tensor(self._risk(model, client), dtype=torch.float64)
        scalars = {**reply.scalars, "gap": gap, "gap_known": float(has_gap)}
        return Reply(reply.rows, scalars), {**rest, "gap.own": own}

    def _risk(self, model: Model, client: Client) -> float:
        split = client.split(self.on)
        risk = mean_loss if self.gap == "loss" else accuracy
        value = risk(forward(model, split), split.y)
        assert value is not None  # both are defined for every non-empty split
        return value if self.gap == "loss" else 1 - value


def whole_gradient(
    gradient: Gradient, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn,
    aside: bool = False, chunk: int | None = None,
) -> Tensor:  # fmt: skip
    """Leave the gradient over the whole training split in `model.gradient`; return the loss.

    Note:
        What is computed `aside` of the training lets Dropout draw as this round's `Measure` does,
        so that both see the same network, and leaves BatchNorm's statistics as they were.
    """
    buffers = model.buffers.clone()
    model.module.train()
    with drawing(replace(turn, exchange="") if aside else turn):
        loss = in_parts(gradient, model, inbox, client, memory, turn, chunk)
        if loss is None:
            with gradient.open(model, inbox, client, memory, turn) as step:
                loss = step(*client.split("train").batch(slice(None)))
    if aside:
        model.buffers.copy_(buffers)
    return loss


def drawing(turn: Turn) -> AbstractContextManager[None]:
    """Key torch's global generator, from which Dropout draws, by the turn; then restore it."""
    return global_draws(turn.generator("layers").get_state())
