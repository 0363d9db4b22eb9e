"""From a data set's domains to the clients of one task, and the answer that looks at no input."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unseen.core.client import Client, Split, Stored, joined, oversampled
from unseen.core.label_scale import Scale
from unseen.core.labels import are_masks
from unseen.core.row_store import SMALL
from unseen.core.schedule import round_share
from unseen.core.survival import Intervals
from unseen.core.turn import keyed
from unseen.data.dataset import UNIT, DataSet, Domain
from unseen.data.tables.encoding import Schema, encode
from unseen.data.tables.site_rows import unusable
from unseen.errors import UnseenError
from unseen.studies.execution.column_statistics import summed
from unseen.studies.execution.label_kinds import (
    prior_of,
    prior_of_times,
    scale_of,
    times_of,
    totals_of,
)
from unseen.studies.settings import client_partition
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec


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
        scale: The standardisation of all clients' labels, or the intervals in which their times
            are; None where they are unchanged.
        sums: All that was exchanged before training, if anything.
        prior: What the sources' training labels say without any input: their mean [1], each
            class's share [C], the hazard of each interval [J], or one log-risk [1] for all; None
            for masks, and where nobody has the labels in one place.
        image: The shape of one image, if inputs are features of images; see `study.frozen`.
        masks: Whether labels are masks of classes.
        times: Where labels are times until an event, the outputs of its model: 1 log-risk, or
            hazards; else 0.
    """

    sources: dict[str, Client]
    validators: dict[str, Client]
    targets: dict[str, Client]
    shape: tuple[int, ...]
    outputs: int
    classes: int | None
    statistics: Tensor | None = None
    scale: Scale | Intervals | None = None
    sums: Tensor | None = None
    prior: Tensor | None = None
    image: tuple[int, ...] | None = None
    masks: bool = False
    times: int = 0

    @property
    def frozen(self) -> bool:
        """Whether inputs are features that the frozen part of the network made of images."""
        return self.image is not None

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of one input of the whole network."""
        return self.image or self.shape

    @property
    def everyone(self) -> dict[str, Client]:
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
    """Make the clients of a task: split, deal out, encode, standardise, oversample.

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
    if (kind := client_partition.read(study.partition)) is not None:
        units = {name: units_of(data[name], study, seed) for name in task.sources}
        sources = client_partition.partitioned(sources, kind, seed, units)
        check_names(sources, data.names)
    validators = {name: _client(data[name], classes) for name in task.validation}
    targets = {name: _client(data[name], classes) for name in task.targets}
    sums, scale, columns = None, None, no_sums(data.schema)
    times = times_of(data, study)
    prior = prior_of(data, sources)
    if (totals := totals_of(data, study)) is not None:
        if study.privacy.columns is not None:
            statistics = totals.of_ranges(study.privacy.columns)
        robust = study.standardise == "robust"
        sums = statistics if statistics is not None else summed(totals, sources, robust)
        columns = totals.of_table(sums)
    scale = scale_of(data, study, sums)
    if columns is not None or scale is not None:
        sources, validators, targets = (
            _encoded(data.schema, columns, scale, group) for group in (sources, validators, targets)
        )
    if times and sources:
        prior = prior_of_times(sources, times)
    if study.training.oversample:
        sources = evened(sources, seed)
    first = next(iter((sources | validators | targets).values()))
    shape = tuple((first.train or first.split("validation")).x.shape[1:])
    groups = sources, validators, targets
    outputs = times or classes or 1
    return Prepared(
        *groups, shape, outputs, classes, columns, scale, sums, prior, data.whole, data.masks, times
    )


def _check_shared(sources: Sequence[Domain]) -> None:
    sizes = sorted({len(domain.y) for domain in sources})
    what = "split = 'shared' holds back the same rows of every source, "
    if sizes[1:]:
        what += f"which must be of one size; found sizes {', '.join(map(str, sizes))}."
    elif any(domain.units is not None for domain in sources):
        what += "and the data's option 'unit' keeps rows together that differ among sources."
    else:
        return
    raise UnseenError(what, remedy="Take split = 'separate'.")


def split_rows(domain: Domain, study: StudySpec, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a source's training and validation split, the official one if any."""
    return rows_of(domain, study.validation, seed, study.split == "shared")


def units_of(domain: Domain, study: StudySpec, seed: int) -> tuple[Tensor, Tensor]:
    """Return the unit of each training row, its views' rows after them, and of those held back."""
    units = torch.arange(len(domain.y)) if domain.units is None else domain.units
    train, validation = (units[rows] for rows in split_rows(domain, study, seed))
    return train.repeat(1 + len(domain.views)), validation


def check_names(clients: Iterable[str], domains: Sequence[str]) -> None:
    """Refuse a client of a partition that is called like a domain."""
    if both := sorted(set(clients) & set(domains)):
        what = f"partition: {both[0]!r} would be a client of a domain, and is a domain's name."
        raise UnseenError(what, remedy="Rename that domain.")


def check_sizes(sources: Sequence[Domain]) -> None:
    """Refuse sources that cannot be divided, all at once."""
    what, remedy = unusable(sources)
    if what:
        raise UnseenError(what, remedy=remedy)


def rows_of(domain: Domain, share: float, seed: int, shared: bool = False) -> tuple[Tensor, Tensor]:
    """Return the rows of the training and the validation split, in the domain's order.

    Args:
        domain: The domain.
        share: The share that is held back.
        seed: The job's seed.
        shared: Whether domains of equal size hold back equal rows.
    """
    check_sizes([domain])
    n = len(domain.y)
    mask = torch.zeros(n, dtype=torch.bool)
    if domain.validation is not None:
        mask[domain.validation] = True
    else:
        draw = keyed(f"{seed}/split/{'' if shared else domain.name}")
        if domain.units is not None:
            mask = held_back(domain.y, domain.units, share, draw)
        else:
            count = min(n - 1, max(1, round_share(share, n)))
            mask[torch.randperm(n, generator=draw)[:count]] = True
    return (~mask).nonzero().flatten(), mask.nonzero().flatten()


def _client(
    domain: Domain, classes: int | None, splits: tuple[Tensor, Tensor] | None = None
) -> Client:
    # An array with a digest of its own stays on disk, but for features of a frozen trunk: they are
    # small, and a step of the head takes less than reading them.
    small = domain.x.dim() == 2 and domain.x.nbytes <= SMALL
    x = domain.x if domain.digest is None or small else Stored.of(domain.x)
    own = {} if domain.units is None else {UNIT: domain.units}
    everything = Split(x, domain.y, {**domain.meta, **own})
    if splits is None:
        return Client(domain.name, None, everything, classes)
    train, validation = map(everything.take, splits)
    if domain.views:
        views = (Stored.of(view).take(splits[0]) for view in domain.views)
        times = 1 + len(domain.views)
        meta = {column: codes.repeat(times) for column, codes in train.meta.items()}
        train = Split(joined([train.x, *views]), torch.cat([train.y] * times), meta)
    return Client(domain.name, train, validation, classes)


def evened(sources: Mapping[str, Client], seed: int) -> dict[str, Client]:
    """Return the clients with examples of rare classes repeated until all are as many."""
    splits = {
        name: oversampled(client.split("train"), keyed(f"{seed}/oversample/{name}"))
        for name, client in sources.items()
    }
    return {name: replace(client, train=splits[name]) for name, client in sources.items()}


def no_sums(schema: Schema | None) -> Tensor | None:
    """Return the statistics of a table of text alone: none [0]; None for other data."""
    return None if schema is None or schema.columns else torch.zeros(0, dtype=torch.float64)


def _encoded(
    schema: Schema | None,
    sums: Tensor | None,
    scale: Scale | Intervals | None,
    clients: Mapping[str, Client],
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


def held_back(y: Tensor, units: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Which rows [N] are held back: whole units, about `share` of the rows of every class.

    Units come in a random order, and one is taken if it brings the counts nearer to what is
    wanted, Σ_c (held_c − share n_c)² / (share n_c) over the classes c; numbers and masks are one
    class.

    Example:
        >>> y, units = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([7, 7, 8, 8, 9, 4])
        >>> rows = held_back(y, units, 0.5, torch.Generator().manual_seed(0))
        >>> bool(rows[0] == rows[1]), bool(rows[2] == rows[3]), y[rows].bincount().tolist()
        (True, True, [2, 1])
    """
    one = y.is_floating_point() or are_masks(y)
    codes = torch.zeros_like(units) if one else y.unique(return_inverse=True)[1]
    names, place = units.unique(return_inverse=True)
    # How many rows of each class [U, C] every unit has.
    width = int(codes.max()) + 1
    sizes = torch.bincount(place * width + codes, minlength=len(names) * width)
    table = sizes.view(len(names), width).double()
    goal = share * table.sum(0)

    def apart(counts: Tensor) -> float:
        return float(((counts - goal).square() / goal).sum())

    order = torch.randperm(len(names), generator=generator).tolist()
    members: list[int] = []
    counts = torch.zeros(width, dtype=torch.float64)
    for unit in order:
        if len(members) < len(names) - 1 and apart(counts + table[unit]) < apart(counts):
            counts = counts + table[unit]
            members.append(unit)
    if not members:  # every unit alone is too much: the one that is least so
        members = [min(order, key=lambda unit: apart(table[unit]))]
    return torch.isin(place, torch.tensor(members))


def read_by_prepare(study: StudySpec) -> tuple[object, ...]:
    """Return what `prepare` reads of a study: jobs that share it can share their clients."""
    training = study.training
    return (
        study.split,
        study.validation,
        study.partition,
        study.privacy.columns,
        study.standardise,
        training.oversample,
        training.loss,
    )
