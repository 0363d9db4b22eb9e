"""From a data set's domains to the clients of one task, and all that can be wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.combine import Sum
from unseen.core.apply import Replace
from unseen.core.client import Client, Split, Stored, oversampled
from unseen.core.exchange import Exchange, Method, Slot
from unseen.core.metrics import plain
from unseen.core.round import play, start
from unseen.core.scale import Scale
from unseen.core.share import round_share
from unseen.core.turn import keyed
from unseen.core.vector import Model
from unseen.datasets.dataset import DataSet, Domain
from unseen.datasets.encoding import Schema, encode
from unseen.datasets.totals import Totals
from unseen.engine.inprocess import InProcess
from unseen.errors import UnseenError
from unseen.spec.holdout import Task
from unseen.spec.study import StudySpec
from unseen.study.units import held_back


@dataclass(frozen=True)
class Prepared:
    """The clients of one task and seed.

    Attributes:
        sources: Those with a training and a validation split.
        validators, targets: Those that only evaluate, on their whole domain.
        shape: The shape of one input.
        outputs: Columns of the model's output.
        classes: The number of classes; None for regression.
        statistics: The sources' sums by which a table was encoded; None without a table.
        scale: The standardisation of all clients' labels; None where they are unchanged.
        sums: All that was exchanged before training, if anything.
        prior: What the sources' training labels say without any input: their mean [1], or each
            class's share [C]; None where nobody has them in one place.
    """

    sources: dict[str, Client]
    validators: dict[str, Client]
    targets: dict[str, Client]
    shape: tuple[int, ...]
    outputs: int
    classes: int | None
    statistics: Tensor | None = None
    scale: Scale | None = None
    sums: Tensor | None = None
    prior: Tensor | None = None

    @property
    def everyone(self) -> dict[str, Client]:
        """All clients by name."""
        return {**self.sources, **self.validators, **self.targets}

    @property
    def roles(self) -> dict[str, str]:
        """What each domain is to this task, as records call it."""
        return {
            **dict.fromkeys(self.sources, "source"),
            **dict.fromkeys(self.validators, "ood-validation"),
            **dict.fromkeys(self.targets, "target"),
        }


def prepare(
    data: DataSet, task: Task, study: StudySpec, seed: int, statistics: Tensor | None = None
) -> Prepared:
    """Make the clients of a task: split, encode, standardise, oversample.

    A domain's split depends on the seed and its name alone (`split = "shared"`: on the seed and its
    size), so that all methods and tasks share it.

    Args:
        data: The data set.
        task: Sources, validators and targets.
        study: The settings. Public ranges of columns, if it has any, replace sums.
        seed: The job's seed.
        statistics: The sources' sums, where they were exchanged before.

    Raises:
        UnseenError: If the domains cannot be split as the study says.
    """
    classes = len(data.classes) if data.classes is not None else None
    if study.split == "shared":
        _check_shared([data[name] for name in task.sources])
    sources = {}
    for name in task.sources:
        sources[name] = _client(data[name], classes, split_rows(data[name], study, seed))
    validators, targets = (
        {name: _client(data[name], classes) for name in names}
        for names in (task.validation, task.targets)
    )
    sums, columns, scale = None, None, None
    prior = prior_of(sources, classes)
    if (totals := Totals.of(data)) is not None:
        if study.privacy.columns is not None:
            statistics = totals.of_ranges(study.privacy.columns)
        sums = statistics if statistics is not None else summed(totals, sources)
        columns, scale = totals.of_table(sums), totals.scale(sums)
        sources, validators, targets = (
            _encoded(data.schema, columns, scale, group) for group in (sources, validators, targets)
        )
    if study.training.oversample:
        for name, client in sources.items():
            split = oversampled(client.split("train"), keyed(f"{seed}/oversample/{name}"))
            sources[name] = replace(client, train=split)
    first = next(iter((sources | validators | targets).values()))
    shape = tuple((first.train or first.split("validation")).x.shape[1:])
    outputs = classes or 1
    return Prepared(
        sources, validators, targets, shape, outputs, classes, columns, scale, sums, prior
    )


def _check_shared(sources: Sequence[Domain]) -> None:
    """Refuse sources of which the same rows cannot be held back."""
    sizes = {len(domain.y) for domain in sources}
    why = ""
    if len(sizes) > 1:
        sized = ", ".join(map(str, sorted(sizes)))
        why = f"which must be of one size; found sizes {sized}"
    elif any(domain.units is not None for domain in sources):
        why = "and the data's option 'unit' keeps rows together that differ from source to source"
    if why:
        raise UnseenError(
            f"split = 'shared' holds back the same rows of every source, {why}.",
            remedy="Take split = 'separate'.",
        )


def prior_of(sources: Mapping[str, Client], classes: int | None) -> Tensor | None:
    """Return the mean of the sources' training labels [1], or each class's share of them [C]."""
    if not sources:
        return None
    y = torch.cat([client.split("train").y for client in sources.values()])
    if classes is None:
        return y.double().mean().view(1)
    return torch.bincount(y, minlength=classes).double() / len(y)


def check_clients(prepared: Prepared, study: StudySpec, task: Task) -> list[str]:
    """Refuse clients that cannot train as the study says.

    Returns:
        What deserves a warning.
    """
    warnings = []
    if study.training.augment and len(prepared.shape) != 3:
        raise UnseenError(
            f"training.augment changes images; inputs here have the shape {list(prepared.shape)}.",
            remedy="Leave it out.",
        )
    for name, client in prepared.sources.items():
        train = client.split("train")
        n, batch = len(train), study.training.batch_size
        where = f"client {name!r} (task {task.name!r})"
        if batch > n:
            raise UnseenError(
                f"batch_size = {batch} is larger than the {n} training examples of {where}.",
                remedy=f"Set training.batch_size to {n} or less.",
            )
        for split in (train, client.split("validation")):
            _check_finite(split.x, where)
        if client.classes is not None and bool((train.y == train.y[0]).all()):
            # Without the task, so that the one site is named once in a study.
            warnings.append(
                f"client {name!r} has examples of class {int(train.y[0])} only; it trains towards "
                "always answering that, and its AUROC is undefined."
            )
    for name, client in (prepared.validators | prepared.targets).items():
        _check_finite(client.split("validation").x, f"domain {name!r} (task {task.name!r})")
    return warnings


def check_model(module: torch.nn.Module, prepared: Prepared, study: StudySpec) -> None:
    """Refuse a model that does not take the inputs or whose outputs do not fit the labels."""
    client = next(iter(prepared.sources.values()))
    x, _ = client.split("train").batch(slice(0, 2))
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(x)
    except (RuntimeError, ValueError, TypeError) as error:
        raise UnseenError(
            f"the model {study.model or 'of the data set'} cannot take inputs of shape "
            f"{list(x.shape[1:])}: {str(error).splitlines()[0]}"
        ) from None
    found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    widths = (prepared.outputs, 1) if prepared.classes == 2 else (prepared.outputs,)
    if found not in [[len(x), width] for width in widths]:
        what = f"{prepared.classes} classes" if prepared.classes else "one number per example"
        raise UnseenError(
            f"the model's output does not fit {what}: expected shape "
            f"[{len(x)}, {prepared.outputs}] for {len(x)} examples, found {found}."
        )


def check_batches(module: torch.nn.Module, roster: Mapping[str, Client], study: StudySpec) -> None:
    """Refuse a batch of one for a model with BatchNorm: it has no variance."""
    if not any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        return
    batch = study.training.batch_size
    for name, client in roster.items():
        n = len(client.split("train"))
        if batch == 1 or (n % batch == 1 and not study.training.drop_last):
            raise UnseenError(
                f"client {name!r} has {n} training examples, so that with batch_size = {batch} a "
                "batch of one remains, which BatchNorm cannot normalise.",
                remedy="Set training.drop_last = true, or another batch size.",
            )


def split_rows(domain: Domain, study: StudySpec, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a source's training and validation split, the official one if any."""
    return rows_of(domain, study.validation, seed, study.split == "shared")


def rows_of(domain: Domain, share: float, seed: int, shared: bool = False) -> tuple[Tensor, Tensor]:
    """Return the rows of the training and the validation split, in the domain's order.

    Rows of one unit stay together.

    Args:
        domain: The domain.
        share: The share that is held back.
        seed: The job's seed.
        shared: Whether domains of equal size hold back equal rows.
    """
    n = len(domain.y)
    held = torch.zeros(n, dtype=torch.bool)
    units = torch.arange(n) if domain.units is None else domain.units
    if domain.validation is not None:
        held[domain.validation] = True
    elif len(units.unique()) < 2:
        few = f"domain {domain.name!r} has {n} example"
        same = f"all {n} examples of domain {domain.name!r} are of one unit"
        raise UnseenError(
            f"{few if domain.units is None else same}; a source needs one to train on and one to "
            "validate on."
        )
    else:
        draw = keyed(f"{seed}/split/{'' if shared else domain.name}")
        if domain.units is not None:
            held = held_back(domain.y, units, share, draw)
        else:
            count = min(n - 1, max(1, round_share(share, n)))
            held[torch.randperm(n, generator=draw)[:count]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def _client(
    domain: Domain, classes: int | None, splits: tuple[Tensor, Tensor] | None = None
) -> Client:
    """Return a client of a domain, with rows to train on and to validate on or all to validate."""
    # An array with a digest of its own stays on disk.
    x = domain.x if domain.digest is None else Stored.of(domain.x)
    everything = Split(x, domain.y, domain.meta)
    train, validation = map(everything.take, splits) if splits else (None, everything)
    return Client(domain.name, train, validation, classes)


def statistics(totals: Totals) -> Method:
    """Return the one exchange that sums up the training clients' rows, before training."""
    slot = Slot(Sum(), apply=Replace(), sends="value", start=partial(_zeros, totals.size))
    exchange = Exchange("statistics", totals, {"statistics": slot}, rounds=(0, 0), who="all")
    shares = ("count, sum and sum of squares per column, and counts of categories",)
    return Method("statistics", (exchange,), (), plain, shares=shares)


def _zeros(size: int, model: Model) -> Tensor:
    return torch.zeros(size, dtype=torch.float64)


def summed(totals: Totals, sources: Mapping[str, Client]) -> Tensor:
    """Exchange the training clients' statistics of their raw rows, in this process."""
    method, nothing, roster = statistics(totals), Model(torch.nn.Module()), sorted(sources)
    begun = start(method, nothing, roster, seed=0)
    state, _ = play(method, begun, InProcess(nothing, sources), roster, rounds=1)
    return state.inbox["statistics"]


def _encoded(
    schema: Schema | None, sums: Tensor | None, scale: Scale | None, clients: Mapping[str, Client]
) -> dict[str, Client]:
    """Encode raw tables and standardise labels, by the training clients' statistics alone."""

    def numbers(split: Split | None) -> Split | None:
        if split is None:
            return None
        if schema is not None and sums is not None:
            split = replace(split, x=encode(schema, sums, split.x[:]))
        return replace(split, y=scale.standardised(split.y)) if scale is not None else split

    return {
        name: replace(client, train=numbers(client.train), validation=numbers(client.validation))
        for name, client in clients.items()
    }


def _check_finite(values: Tensor | Stored, where: str) -> None:
    if not values.dtype.is_floating_point:
        return
    parts = (values[slice(i, i + 1024)] for i in range(0, len(values), 1024))
    bad = sum(int((~torch.isfinite(part)).sum()) for part in parts)
    if bad:
        raise UnseenError(
            f"{where} has {bad} values that are NaN or infinite.",
            remedy="Repair the file, or name the token for missing values, to have them imputed.",
        )
