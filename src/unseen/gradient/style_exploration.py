"""StableFDG's styles on the client: others' styles, more of rare classes, styles further out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core import Client, Inbox, Memory, Model, Reply, Turn
from unseen.core.parts import Part, Wrapper
from unseen.core.schedule import round_share
from unseen.gradient.backprop import Gradient, Step
from unseen.gradient.fedfa import channels, measured
from unseen.gradient.mixstyle import EPSILON
from unseen.gradient.mixup import beta
from unseen.images.features import layer_names, tapped
from unseen.metrics.evaluation import EVALUATION_BATCH
from unseen.ranges import NotNegative, Positive, Share, log, uniform

#: The exchange, its slot and the inbox entry [N, 4 C]: over the examples of each client the means
#: of a channel's mean and deviation, then their standard deviations.
STYLES = "styles"
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class StyleExplored(Wrapper, named="stablefdg-style"):
    """The inner gradient on maps in other clients' styles, and in styles further out.

        shared:   (μ', σ') ~ N(mean_k, deviation_k²) of a client k, on half of a batch
        explored: μ + level (μ − mean_batch(μ)),  σ + level (σ − mean_batch(σ)),  on added examples

    Attributes:
        inner: the gradient of the loss.
        share: the probability that half of a batch takes another client's style, after the first
            layer. Those that keep theirs are chosen to differ, by k-means++ on (μ, σ).
        p: the probability of each layer that styles are explored and mixed there.
        level: how far out added examples are, α in the paper; 3 as released.
        oversample: examples that are added, as a share of the batch, from the classes with fewest
            in it; 1 as released. They are added before the first layer that explores.
        alpha: styles of all examples are mixed by λ ~ Beta(alpha, alpha), as `mixstyle` does.
        layers: names in the net; none for `layer1` to `layer3` where there are such, or else all
            convolutions but the last.

    Source:
        Park, Han, Kim, Wang, Brinton, Moon 2023, "StableFDG: Style and Attention Based Learning for
        Federated Domain Generalization"; its released code.
    """

    inner: Gradient
    share: Annotated[Share, uniform(0, 1)] = 0.5
    p: Annotated[Share, uniform(0.1, 1)] = 0.5
    level: Annotated[NotNegative, uniform(0, 5)] = 3.0
    oversample: Annotated[Share, uniform(0, 1)] = 1.0
    alpha: Annotated[Positive, log(0.05, 1)] = 0.1
    layers: Sequence[str] | None = None

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        draws, names = turn.generator("stablefdg"), style_layers(model.module, self.layers)
        style = partner(inbox[STYLES], turn)
        with ExitStack() as stack, self.inner.open(model, inbox, client, memory, turn) as inner:
            taps = [stack.enter_context(tapped(model.module, n, "output")) for n in names]

            def step(x: Tensor, y: Tensor) -> Tensor:
                sharing = style is not None and bool(torch.rand((), generator=draws) < self.share)
                active = (torch.rand(len(taps), generator=draws) < self.p).nonzero()[:, 0].tolist()
                more = round_share(self.oversample, len(y)) if active and len(y) > 1 else 0
                added = rarest(y, more, draws).to(y.device)
                if sharing and len(y) > 1:
                    assert style is not None
                    taps[0].change = partial(shifted, style=style, count=len(y), draws=draws)
                for i in active:
                    first = added if i == active[0] else added[:0]
                    after = partial(self.explored, first=first, count=len(y), draws=draws)
                    taps[i].change = chained(taps[i].change, after)
                for tap in taps:
                    tap.change = tap.change and training_alone(tap.change, model)
                try:
                    return inner(torch.cat([x, x[added]]), torch.cat([y, y[added]]))
                finally:
                    for tap in taps:
                        tap.change = None

            yield step

    def explored(self, z: Tensor, first: Tensor, count: int, draws: torch.Generator) -> Tensor:
        """Return maps whose styles are mixed, those of the examples added here explored before."""
        if len(z) < 2:
            return z
        if len(first):
            z = torch.cat([z[:count], z[first]])
        mean, deviation = (s.detach() for s in styles(z))
        plain, new = (z - mean) / deviation, []
        for own in (mean, deviation):
            out = own[count:] + self.level * (own[count:] - own[:count].mean(0))
            new.append(torch.cat([own[:count], out]) if len(first) else own)
        lam = torch.tensor([beta(self.alpha, draws) for _ in z]).to(z).view(-1, 1, 1, 1)
        order = torch.randperm(len(z), generator=draws).to(z.device)
        mean, deviation = (lam * own + (1 - lam) * own[order] for own in new)
        return plain * deviation + mean


def styles(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel of each example over its pixels [N, C, 1, 1]."""
    return z.mean((2, 3), keepdim=True), (z.var((2, 3), keepdim=True) + EPSILON).sqrt()


def shifted(z: Tensor, style: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """Return maps of which half of the first `count` have styles drawn from those of a client."""
    mean, deviation = (s.detach() for s in styles(z))
    own = torch.cat([mean, deviation], 1).flatten(1)
    keeps = spread_out(own[:count], count - count // 2, draws)
    moves = torch.ones(count, dtype=torch.bool).index_fill(0, keeps, False).nonzero()[:, 0]
    centre, spread = style.to(z).chunk(2)
    noise = torch.randn(len(moves), len(centre), generator=draws).to(z)
    m, s = (centre + noise * spread).chunk(2, 1)
    new = z.clone()
    plain = ((z - mean) / deviation)[moves]
    new[moves] = plain * s.clamp(min=0)[..., None, None] + m[..., None, None]
    return new


def chained(before: Change | None, after: Change) -> Change:
    """Return what applies one change of maps after another."""
    return after if before is None else lambda z: after(before(z))


def training_alone(change: Change, model: Model) -> Change:
    """Return the change for passes in training mode, of which alone the batch is the step's."""
    return lambda z: change(z) if model.module.training else z


def spread_out(points: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """Return `count` of the points [n, d] by k-means++: each with chance ∝ its squared distance."""
    points = points.double().cpu()
    picks = [int(torch.randint(len(points), (), generator=draws))]
    nearest = torch.full((len(points),), torch.inf, dtype=torch.float64)
    for _ in range(count - 1):
        nearest = torch.minimum(nearest, (points - points[picks[-1]]).square().sum(1))
        nearest[picks] = 0
        chance = nearest.clone()
        if not bool(chance.sum() > 0):  # all that are left coincide with one that is taken
            chance = torch.ones_like(nearest).index_fill(0, torch.tensor(picks), 0)
        picks.append(int(torch.multinomial(chance, 1, generator=draws)))
    return torch.tensor(picks)


def rarest(y: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """Return `count` rows to add, each of a class that then has fewest; ties and rows are drawn."""
    y = y.cpu()
    there, counts = y.unique(return_counts=True)
    added = []
    for _ in range(count):
        fewest = (counts == counts.min()).nonzero()[:, 0]
        k = int(fewest[torch.randint(len(fewest), (), generator=draws)])
        rows = (y == there[k]).nonzero()[:, 0]
        added.append(int(rows[torch.randint(len(rows), (), generator=draws)]))
        counts[k] += 1
    return torch.tensor(added, dtype=torch.long)


def partner(rows: Tensor, turn: Turn) -> Tensor | None:
    """Return the style [4 C] of the next who answered on a circle drawn for the round, if any."""
    draws = replace(turn, client="").generator("stablefdg circle")  # the same for all
    circle = torch.randperm(len(rows), generator=draws).tolist()
    at = circle.index(turn.index) if turn.index in circle else 0
    others = [i for i in circle[at + 1 :] + circle[:at] if bool(rows[i].any())]
    return rows[others[0]] if others else None


def style_layers(module: nn.Module, layers: Sequence[str] | None) -> list[str]:
    """Return the layers after which styles are shared (the first), explored and mixed."""
    blocks = [f"layer{k}" for k in (1, 2, 3)]
    here = [name for name, _ in module.named_modules() if name in blocks]
    if layers is not None or here:
        return layer_names(module, layers or here)
    every = layer_names(module, None, len(list(module.modules())))
    return every[:-1] or every


@dataclass(frozen=True)
class StyleStatistics(Part):
    """The local of an exchange in which clients send their style at the received model.

    Attributes:
        layers: As those of the gradient.
    """

    layers: Sequence[str] | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        split, name = client.split("train"), style_layers(model.module, self.layers)[:1]
        sums = torch.zeros(2, 2 * channels(model, name)[0], dtype=torch.float64)
        for begin in range(0, len(split), EVALUATION_BATCH):
            x, _ = split.batch(slice(begin, begin + EVALUATION_BATCH))
            (z,) = measured(model, x.to(model.device), name)
            own = torch.cat(styles(z), 1).flatten(1).double().cpu()
            sums += torch.stack([own.sum(0), own.square().sum(0)])
        n = len(split)
        mean, square = sums / n
        variance = (square - mean.square()).clamp(min=0) * n / max(1, n - 1)
        row = torch.cat([mean, (variance + EPSILON).sqrt()]).to(model.vector)
        return Reply({STYLES: row}, {"examples": n}), memory


def first_style(layers: Sequence[str] | None, model: Model) -> Tensor:
    """Return a client's row [4 C] before it has sent any: zeros."""
    C = channels(model, style_layers(model.module, layers)[:1])[0]
    return F.pad(model.vector[:0], (0, 4 * C))
