"""Examples out of updates: in the clear, under noise, masked and encrypted, and out of sums."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from unseen.core.client import Client, Split
from unseen.core.exchange import Method
from unseen.core.turn import keyed
from unseen.core.vector import Model
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.privacy import channel as channels
from unseen.privacy.accounting import epsilon
from unseen.privacy.dp import Examples, private, read
from unseen.privacy.dp.examples import OutputLoss, output_loss
from unseen.studies.audit import inversion
from unseen.studies.audit.inversion import RECOVERED, Prior, psnr
from unseen.studies.audit.membership import estimate, interval
from unseen.studies.audit.subject import Subject
from unseen.studies.execution.runtime import first_model

#: How much nearer than the mean of all a result must be, in decibels, where that is near already.
BEYOND = 10.0
#: Noise on single examples' gradients that is tried next to the study's own, in units of clip.
LADDER = (0.001, 0.01, 0.1, 1.0)
#: Sizes of the batches whose gradients are attacked.
BATCHES = (1, 2, 4, 8, 16, 32)
#: Draws of random images for each victim.
RANDOM = 200
#: Victims whose update is encrypted or masked where a model is larger than this.
FEW, LARGE = 3, 200_000


@dataclass(frozen=True)
class Attack:
    """Updates of single examples of a site, and what an attacker has to get these back.

    Attributes:
        subject: What is attacked.
        victim: The site.
        prior_from: The site that the attacker knows such examples from.
        prior: What it knows of them.
        model: The network.
        plain: The method whose clients send one gradient each.
        loss: What their gradients are of.
        clients: One client for each example.
        truth: The examples [N, ...].
        updates: What the clients send [N, P].
        draws: What chance has a say in.
    """

    subject: Subject
    victim: Client
    prior_from: str
    prior: Prior
    model: Model
    plain: Method
    loss: OutputLoss
    clients: dict[str, Client]
    truth: Tensor
    updates: Tensor
    draws: torch.Generator

    @classmethod
    def of(cls, subject: Subject, count: int) -> Self:
        """Return the attack on `count` examples of the first of a study's sites."""
        sources = list(subject.prepared.sources.values())
        victim, other = sources[0], sources[-1]
        recipe = replace(subject.study.training.build(subject.data.kind), augment=None)
        plain, loss = compose("fedsgd", recipe), output_loss(recipe.loss, "audit")
        model = first_model(subject.setting, subject.prepared, subject.seed)
        prior = Prior.of(other.split("train").batch(slice(None))[0])
        shuffled = keyed(f"{subject.seed}/audit/victims")
        order = torch.randperm(len(victim.split("train")), generator=shuffled)
        clients = inversion.single(victim, order[:count].sort().values.tolist())
        truth = torch.cat([c.split("train").batch(slice(None))[0] for c in clients.values()])
        updates = inversion.replies(plain, model, clients)
        draws = keyed(f"{subject.seed}/audit/inversion")
        return cls(
            subject, victim, other.name, prior, model, plain, loss, clients, truth, updates, draws
        )

    @property
    def noun(self) -> str:
        return "image" if self.truth.ndim == 4 else "row"

    @property
    def algebra(self) -> bool:
        """Whether the first layer's gradient holds its input."""
        return inversion.entry(self.model) is not None

    @property
    def mean_only(self) -> Tensor:
        """The mean of the examples that the attacker knows, in place of every one [N, ...]."""
        return self.prior.clipped(self.prior.mean.expand_as(self.truth))

    @property
    def enough(self) -> float:
        """From how many decibels on an example counts as recovered."""
        return max(RECOVERED, float(self.decibels(self.mean_only).mean()) + BEYOND)

    def decibels(self, guess: Tensor) -> Tensor:
        """Return how near guesses [n, ...] are to the first n examples."""
        return psnr(guess, self.truth[: len(guess)], self.prior.span)

    def matched(self, rows: Tensor) -> Tensor:
        """Return guesses by descent on the distance between gradients, for a few updates."""
        some = rows[: FEW if self.algebra else 6]
        parts = [inversion.matching(self.model, u, self.loss, self.prior, self.draws) for u in some]
        return torch.cat(parts)

    def solved(self, rows: Tensor, deviation: float = 0.0) -> Tensor:
        """Return guesses by algebra on the first layer's gradient."""
        return self.prior.clipped(
            inversion.analytic(self.model, rows, self.prior, deviation).float()
        )

    def random(self) -> Tensor:
        """Return guesses that look at nothing [N, ...]."""
        return self.prior.random(len(self.truth), self.draws)


class Guess(NamedTuple):
    """What an attack came to.

    Attributes:
        what: What was attacked, and how.
        images: What it took the first examples to be; None where it could not be tried.
        holding: What the attacker holds.
        extra: More to be said of it.
    """

    what: str
    images: Tensor | None
    holding: str
    extra: Mapping[str, Any] = MappingProxyType({})

    def row(self, attack: Attack) -> dict[str, Any]:
        """Return it as plain data."""
        if self.images is None:
            return {"what": self.what, **self.extra}
        decibels = attack.decibels(self.images)
        return {
            "what": self.what,
            "held": self.holding,
            **estimate("psnr", interval(decibels), 2),
            "recovered": int((decibels > attack.enough).sum()),
            "of": len(self.images),
            "each": [round(float(v), 2) for v in decibels],
            **self.extra,
        }


def invert(subject: Subject, count: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Attack single-example updates under every channel, then sums of several examples.

    Args:
        subject: What is attacked.
        count: How many images' updates.

    Returns:
        As `audit`.
    """
    attack = Attack.of(subject, count)
    guesses = [*in_the_clear(attack), *under_noise(attack), *in_channels(attack)]
    guesses.append(Guess(f"a random {attack.noun}", attack.random(), "nothing"))
    guesses.append(Guess(f"the mean {attack.noun}", attack.mean_only, "nothing"))
    images = {guess.what: guess.images for guess in guesses if guess.images is not None}
    random = torch.stack([attack.decibels(attack.random()) for _ in range(RANDOM)])
    gains = {}  # how much nearer than random images an attack came, on the same victims
    for name in ("masked", "encrypted"):
        if name in images:
            gain = interval(attack.decibels(images[name]) - random.mean(0)[: len(images[name])])
            gains[name] = estimate("gain", gain, 2) | {"no_better": gain[1] <= 0.0}
    findings = {
        "site": attack.victim.name,
        "prior_from": attack.prior_from,
        "noun": attack.noun,
        "enough": round(attack.enough, 2),
        "attacks": [guess.row(attack) for guess in guesses],
        "random_images": {
            "draws": RANDOM,
            "psnr": round(float(random.mean()), 2),
            "highest_mean": round(float(random.mean(1).max()), 2),
        },
        "against_random": gains,
    }
    if attack.algebra:
        findings["batches"] = batches(attack)
    return findings, {f"the site's {attack.noun}s": attack.truth, **images}


def in_the_clear(attack: Attack) -> Iterator[Guess]:
    """Yield what plain updates give away."""
    if attack.algebra:
        yield Guess("plain, by algebra", attack.solved(attack.updates), "the update")
    yield Guess("plain, by gradient matching", attack.matched(attack.updates), "the update")


def under_noise(attack: Attack) -> Iterator[Guess]:
    """Yield what clipped and noised updates give away, at a ladder of noises and the study's."""
    privacy = attack.subject.study.privacy
    own, _ = read(privacy.examples, privacy.clients)
    clip, delta = (1.0, 1e-5) if own is None else (own.clip, own.delta)
    noises = {f"noise {noise:g}": Examples(clip, noise, delta) for noise in LADDER}
    for label, dp in (noises | ({} if own is None else {"the study's noise": own})).items():
        try:
            noised = inversion.replies(private(attack.plain, dp), attack.model, attack.clients)
        except UnseenError as error:
            yield Guess(label, None, "", {"left_out": str(error)})
            continue
        deviation = dp.noise * dp.clip
        guess = attack.solved(noised, deviation) if attack.algebra else attack.matched(noised)
        bound = None
        with suppress(UnseenError):  # the accountants may not be installed
            bound = float(f"{epsilon(dp.noise, 1.0, 1, dp.delta, 'rdp'):.4g}")
        yield Guess(label, guess, "the clipped and noised update", {"epsilon": bound})


def in_channels(attack: Attack) -> Iterator[Guess]:
    """Yield what masked and encrypted updates give away."""
    few = attack.updates if len(attack.updates[0]) < LARGE else attack.updates[:FEW]
    for channel, label in (("masks", "masked"), ("ckks", "encrypted")):
        try:
            every = channels.read(channel).seen_by_server(few.float())
            contents = [c for c in every if isinstance(c, bytes)]
        except (ImportError, UnseenError) as error:
            yield Guess(channel, None, "", {"left_out": str(error)})
            continue
        parts = [inversion.from_bytes(c, attack.model, attack.prior) for c in contents]
        yield Guess(label, torch.cat(parts), f"{len(contents[0]):,} bytes")


def batches(attack: Attack) -> list[dict[str, Any]]:
    """Look for images in sums of gradients, which is what a server sees that holds sums alone.

    A round of the study's own training is attacked, too.
    """
    subject, victim, prior = attack.subject, attack.victim, attack.prior
    split, enough = victim.split("train"), attack.enough
    order = torch.randperm(len(split), generator=keyed(f"{subject.seed}/audit/batches"))

    def best(name: str, row: Tensor, summed: Split) -> dict[str, Any]:
        truth = summed.batch(slice(None))[0]
        candidates = prior.clipped(inversion.units(attack.model, row).float())
        random = prior.random(len(candidates), keyed("audit/candidates"))
        nearest, guessed = (
            inversion.nearest(images, truth, prior.span) for images in (candidates, random)
        )
        return {
            "what": name,
            "examples": len(summed),
            "candidates": len(candidates),
            "psnr": round(float(nearest.mean()), 2),
            "psnr_of_random": round(float(guessed.mean()), 2),
            "recovered": int((nearest > enough).sum()),
        }

    rows = []
    for size in (*(size for size in BATCHES if size <= len(split)), len(split)):
        subset = split.take(order[:size])
        client = Client("victim", subset, None, victim.classes)
        (row,) = inversion.replies(attack.plain, attack.model, {"victim": client})
        rows.append(best(f"the gradient of {size}", row, subset))
    runtime = subject.runtime(subject.method, subject.seed)
    try:
        (row,) = inversion.replies(runtime.method, runtime.model, {victim.name: victim})
    except (UnseenError, KeyError, RuntimeError):
        return rows
    return [*rows, best(f"a round of {subject.method} on all {len(split)}", row, split)]
