"""What deserves a warning about clients that can train all the same, said once for all of them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from unseen.core.client import Client
from unseen.data.tables.encoding import Schema, unknown, unscaled
from unseen.studies.execution.prepare import Prepared
from unseen.studies.settings.study import StudySpec

#: Clients that a sentence names; of more it says how many there are.
NAMED = 8


class Doubt(NamedTuple):
    """What is doubtful about a client.

    Attributes:
        what: The doubt, as "clients with ..." goes on.
        client: The client's name.
        detail: What differs between clients with the same doubt; "" for nothing.
    """

    what: str
    client: str
    detail: str = ""


def doubts_of(
    prepared: Prepared, study: StudySpec, classes: Sequence[str] = (), steps: bool = True
) -> Iterator[Doubt]:
    """Yield what is doubtful about the sources of a task.

    Args:
        prepared: The clients.
        study: The settings.
        classes: The names of the classes, where they have any.
        steps: Whether a method takes steps on batches.
    """
    batch, names = study.training.batch_size, dict(enumerate(classes))
    for name, client in prepared.sources.items():
        train = client.split("train")
        if steps and batch > len(train) and not (study.partition or prepared.times):
            what = f"fewer training examples than a batch of {batch}, whose epoch is one step"
            yield Doubt(what, name, f"{len(train):,}")
        if prepared.masks:
            if not bool((train.y > 0).any()):
                yield Doubt("masks of background alone, which train towards finding nothing", name)
        elif client.classes is not None and bool((train.y == train.y[0]).all()):
            what = "examples of one class only, which train towards always answering that, and "
            what += "whose AUROC is undefined"
            yield Doubt(what, name, names.get(int(train.y[0]), str(int(train.y[0]))))
        if prepared.times and not events(client):
            yield Doubt("no event among their training examples", name)


def events(client: Client) -> int:
    """Return how many training examples of a client have an event."""
    return int(client.split("train").y[:, 1].sum())


def empty_columns(prepared: Prepared, schema: Schema | None) -> tuple[str, ...]:
    """Return the columns of a table in which no training client of a task has a value."""
    if schema is None or prepared.statistics is None:
        return ()
    return unknown(schema, prepared.statistics)


def of_empty(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a sentence on the columns that are empty in training.

    Args:
        columns: Task -> such columns.

    Example:
        >>> of_empty({"north": ["lactate"], "south": []})[0].partition(":")[0]
        "no training site has a value of 'lactate' (task 'north')"
    """
    return [
        f"no training site has a value of {' and '.join(map(repr, names))} ({tasks}): it says "
        "nothing but that a cell is missing, as all are in training, so that the values of another "
        "site shift the answers without a reason; leave it out, of a table by "
        f"drop={[*names]!r}"
        for names, tasks in _by_columns(columns)
    ]


def unscaled_columns(prepared: Prepared, schema: Schema | None) -> tuple[str, ...]:
    """Return the columns of a table that count as constant at a task's training clients."""
    if schema is None or prepared.statistics is None:
        return ()
    return unscaled(schema, prepared.statistics)


def of_unscaled(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a sentence on the columns that count as constant in training.

    Args:
        columns: Task -> such columns.

    Example:
        >>> of_unscaled({"north": ["opened"], "south": []})[0].partition(":")[0]
        "'opened' counts as constant (task 'north')"
    """
    return [
        f"{text_of_unscaled(names, f' ({tasks})')}, of a table by drop={[*names]!r}"
        for names, tasks in _by_columns(columns)
    ]


def text_of_unscaled(names: Collection[str], where: str = "") -> str:
    """Return what is to be said of columns that count as constant, whether they are or not.

    Args:
        names: The columns.
        where: In which tasks, if there are several.
    """
    return (
        f"{' and '.join(map(repr, names))} {'counts' if len(names) == 1 else 'count'} as constant"
        f"{where}: values in training are equal, or deviate by less than a three-millionth of "
        "their size, and are not scaled, so that a network may diverge; subtract an offset first, "
        "as in seconds since a start, or leave out what is constant"
    )


def _by_columns(columns: Mapping[str, Sequence[str]]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield columns, and the tasks of which they are all, in words."""
    tasks: dict[tuple[str, ...], dict[str, str]] = {}
    for task, names in columns.items():
        if names:
            tasks.setdefault(tuple(names), {})[task] = ""
    for names, own in tasks.items():
        yield names, f"{'task' if len(own) == 1 else 'tasks'} {_listed(own)}"


def sentences(doubts: Iterable[Doubt]) -> list[str]:
    """Return a sentence for each kind of doubt, with its clients.

    Example:
        >>> sentences([Doubt("few rows", "a", "3"), Doubt("few rows", "b", "1")])
        ["clients with few rows: 'a' (3), 'b' (1)"]
    """
    by_kind: dict[str, dict[str, str]] = {}
    for doubt in doubts:
        by_kind.setdefault(doubt.what, {}).setdefault(doubt.client, doubt.detail)
    return [f"clients with {what}: {_listed(clients)}" for what, clients in by_kind.items()]


def _listed(clients: dict[str, str]) -> str:
    texts = [
        f"{name!r} ({detail})" if detail else repr(name) for name, detail in sorted(clients.items())
    ]
    more = f" and {len(texts) - NAMED:,} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more
