"""What a study refuses before it runs, and what its `[privacy]` table makes of its jobs."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import MASKS, ONE_LABEL, Backend, Method
from unseen.core.client import Client, Stored
from unseen.data.dataset import DataSet
from unseen.engine.inprocess import InProcess, locals_of
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.methods.local.train import reads_validation
from unseen.privacy import channel
from unseen.studies.execution.doubts import events
from unseen.studies.execution.label_kinds import totals_of
from unseen.studies.execution.prepare import Prepared
from unseen.studies.settings.holdout import Task
from unseen.studies.settings.study import StudySpec

#: Augmentations that move pixels, which labels of pixels would have to follow.
MOVING = ("random-resized-crop", "flip")
#: Channels that show the server no single client's row.
SUMMED = ("masks", "ckks")


def privatised(method: Method, study: StudySpec) -> Method:
    """Return the method with the noise that the study asks for."""
    if not study.privacy.noised:
        return method
    from unseen.privacy.dp import private, read

    examples, clients = read(study.privacy.examples, study.privacy.clients)
    return private(method, examples, clients, study.participation, study.privacy.kind in SUMMED)


def check_columns(study: StudySpec, data: DataSet) -> None:
    """Refuse sums over columns that no noise protects, and ranges where there are no columns."""
    ranges, totals = study.privacy.columns, totals_of(data, study)
    if totals is None and ranges is not None:
        what = f"privacy.columns is for tables, which {data.name} is not."
        raise UnseenError(what, remedy="Leave it out.")
    if totals is not None and ranges is not None:
        totals.of_ranges(ranges)
    if totals is None or ranges is not None or not study.privacy.noised:
        return
    also = f", the label {totals.label!r} among them" if totals.label is not None else ""
    keys = (n if n.replace("_", "").isalnum() else f"'{n}'" for n in totals.columns)
    example = ", ".join(f"{key} = [0, 100]" for key in keys)
    raise UnseenError(
        f"privacy: {data.name} is standardised and imputed with sums that leave the clients "
        "before training, without noise.",
        remedy=f"Say in which ranges its numeric columns lie{also}, by what is known without "
        f"looking at the data, such as privacy.columns = {{{example}}}; or leave the noise out.",
    )


def check_noised(study: StudySpec, data: DataSet, network: nn.Module) -> None:
    """Refuse what would leave a client without noise all the same. Every site looks for itself."""
    check_columns(study, data)
    if not study.privacy.noised:
        return
    from unseen.privacy.dp.examples import check_layers

    if study.training.oversample:
        what = (
            "privacy: training.oversample repeats examples, and no bound on the part of one holds."
        )
        raise UnseenError(what, remedy="Leave it out.")
    check_layers(network, f"{study.model or 'the model'}+dp")


def check_private(
    study: StudySpec, data: DataSet, network: nn.Module, clients: Mapping[str, Client]
) -> list[str]:
    """Check as `check_noised` does, before anything runs.

    Returns:
        What deserves a warning.
    """
    check_noised(study, data, network)
    if not study.privacy.noised:
        return []
    from unseen.privacy.accounting import opacus
    from unseen.privacy.dp import read

    opacus("accountants")
    examples, whole = read(study.privacy.examples, study.privacy.clients)
    delta = examples.delta if examples is not None else 0.0
    sizes = {name: len(client.split("train")) for name, client in clients.items()}
    warnings = [
        f"privacy.examples: δ = {delta:g} is not less than 1/{n}, one over the number of examples "
        f"of client {name!r}: publishing one example whole would count as private."
        for name, n in sizes.items()
        if delta >= 1 / n
    ]
    for where, dp in (("examples", examples), ("clients", whole)):
        if dp is not None and (dp.seed is not None or not dp.noise):
            why = "its noise follows from a known seed" if dp.seed is not None else "noise = 0"
            warnings.append(f"privacy.{where} protects nothing: {why}.")
    return warnings


def checked(method: Method, study: StudySpec) -> Method:
    """Return the method, if the study's channel and server can serve it."""
    kind = channel.read(study.privacy.channel, study.privacy.server)
    if not kind.hides:
        return method
    channel.check(kind, method)
    looks = [f"record = {kind}" for kind in ("gram", "drift") if kind in study.record]
    looks += ["locals"] * ("locals" in study.save)
    if looks := looks + ["cross_evaluation"] * study.cross_evaluation:
        what = (
            f"{', '.join(looks)} looks at updates in the clear, which nobody sees on the channel "
        )
        remedy = "Leave it out, or take the channel 'clear'."
        raise UnseenError(f"{what}{study.privacy.channel!r}.", remedy=remedy)
    if study.privacy.server == "blind" and {*study.save} - {"selected"}:
        raise UnseenError(
            f"save = {list(study.save)} writes the server's model, and with privacy.server = "
            "'blind' it has none. The sites hold it."
        )
    return method


def check_measured(study: StudySpec) -> None:
    """Refuse a study of tables whose sites send no metrics."""
    if study.privacy.metrics == "none":
        raise UnseenError(
            "privacy.metrics = 'none' leaves a study without a table.",
            remedy="Leave it out, or train one model: unseen federation train.",
        )


def check_in_process(study: StudySpec) -> None:
    """Refuse what real sites alone can do."""
    check_measured(study)
    if study.privacy.server == "blind" and study.save:
        raise UnseenError(
            f"save = {list(study.save)} writes the model, and with privacy.server = 'blind' sites "
            "alone may have it.",
            remedy="Train it with them: unseen federation train.",
        )


def check_completed(method: Method, study: StudySpec, sites: int) -> None:
    """Refuse a method, completed for its sites, that the study's channel cannot serve."""
    kind = channel.read(study.privacy.channel, study.privacy.server)
    channel.check(kind, method, sites)
    reads = any(map(reads_validation, locals_of(method)))
    if study.privacy.metrics == "none" and reads:
        raise UnseenError(
            f"{method.name} sends figures of the rows that are held back for validation, and "
            "privacy.metrics = 'none' keeps these at the clients.",
            remedy="Take another method, on='train' of ga, or privacy.metrics = 'plain'.",
        )


def behind(study: StudySpec, method: Method, backend: Backend) -> tuple[Backend, Method]:
    """Return the backend behind the study's channel, and the method as the server plays it."""
    kind = channel.read(study.privacy.channel, study.privacy.server)
    if kind.hides:
        if isinstance(backend, InProcess):
            names = sorted(backend.clients)
            backend = channel.wrap(kind, method, backend, names)
        if not backend.carries_channel():
            raise UnseenError(
                f"{type(backend).__name__} does not carry privacy.channel = "
                f"{study.privacy.channel!r}: updates would travel in the clear.",
                remedy="Run the study in process, or leave the channel out.",
            )
    return backend, backend.played(method)


def check_clients(prepared: Prepared, study: StudySpec, task: Task, steps: bool = True) -> None:
    """Refuse clients that cannot train as the study says.

    Args:
        prepared: The clients.
        study: The settings.
        task: What they are sources and targets of.
        steps: Whether a method takes steps on batches.
    """
    batch = study.training.batch_size
    if study.training.augment and len(prepared.shape) != 3 and not prepared.frozen:
        what = f"training.augment changes images; inputs here have shape {list(prepared.shape)}."
        raise UnseenError(what, remedy="Leave it out.")
    for name, client in prepared.sources.items():
        n, where = len(client.split("train")), f"client {name!r} (task {task.name!r})"
        if steps and batch > n and study.training.drop_last:
            raise UnseenError(
                f"batch_size = {batch} is larger than the {n} training examples of {where}.",
                remedy=f"Set training.batch_size to {n} or less, or training.drop_last = false.",
            )
        for split in (client.train, client.validation):
            if split is not None:
                _check_finite(split.x, where)
    for name, client in (prepared.validators | prepared.targets).items():
        _check_finite(client.split("validation").x, f"domain {name!r} (task {task.name!r})")


def lacks(method: Method, network: nn.Module, prepared: Prepared) -> str:
    """Return what a method needs that data and model are not, as a reason; "" for nothing."""
    lacking = [ask for ask in method.asks if not _has(ask, network, prepared)]
    why = ", and gets features of them" if prepared.frozen and "images" in lacking else ""
    return f"{needs(lacking, prepared.masks)}{why}"


def needs(lacking: Sequence[str], masks: bool) -> str:
    """Return a reason of what is lacking; "" for nothing."""
    names = {"classes": "one class per example"} if masks else {}
    return f"needs {' and '.join(names.get(ask, ask) for ask in lacking)}" if lacking else ""


def has_labels(ask: str, classes: object, masks: bool) -> bool | None:
    """Return whether labels are what a method asks for; None if it asks for something else.

    Args:
        ask: One of `Method.asks`.
        classes: Names or number of the classes; None for numbers.
        masks: Whether every pixel has a class.
    """
    if ask == "classes":
        return classes is not None and not masks
    return masks is (ask == MASKS) if ask in (ONE_LABEL, MASKS) else None


def _has(ask: str, network: nn.Module, prepared: Prepared) -> bool:
    if ask == "images":
        return len(prepared.shape) == 3 and not prepared.frozen
    labels = has_labels(ask, prepared.classes, prepared.masks)
    if labels is not None:
        return labels
    kind = nn.Conv2d if ask == "convolutions" else _BatchNorm
    return any(isinstance(layer, kind) for layer in network.modules())


def check_masks(study: StudySpec, data: DataSet) -> None:
    """Refuse settings that have no meaning for masks, where labels are these."""
    if not data.masks:
        return
    partition = parse(study.partition)[0].name if study.partition else ""
    augment = parse(study.training.augment) if study.training.augment else ()
    moved = [call.name for call in augment if call.name in MOVING]
    refused = {
        "freeze": (study.frozen, "features of a frozen part have lost the pixels' places"),
        "partition": (partition == "dirichlet", "dirichlet deals examples by their one class"),
        "training.augment": (bool(moved), f"{', '.join(moved)} moves pixels of images alone"),
        "privacy.examples": (
            bool(study.privacy.examples),
            "the Dice of a batch is not a mean of "
            "its examples' losses, whose gradients would be clipped",
        ),
    }
    for name, (there, why) in refused.items():
        if there:
            raise UnseenError(f"{name} is not for masks: {why}.", remedy="Leave it out.")


def check_events(prepared: Prepared, task: Task) -> None:
    """Refuse sources of which none has an event, where all of them are here."""
    if not any(events(client) for client in prepared.sources.values()):
        raise UnseenError(
            f"no source of task {task.name!r} has an event among its training examples: all are "
            "censored.",
            remedy="Look at the column of the event: 1 is an event, 0 a censored row.",
        )


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
    shape = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    widths = (prepared.outputs, 1) if prepared.classes == 2 else (prepared.outputs,)
    if prepared.masks:
        _check_pixels(shape, [len(x), prepared.outputs, *x.shape[2:]], prepared.outputs)
    elif shape not in [[len(x), width] for width in widths]:
        labels = f"{prepared.classes} classes" if prepared.classes else "one number per example"
        if prepared.times:
            cox = "one log-risk per example"
            labels = cox if prepared.times == 1 else f"hazards of {prepared.times} intervals"
        raise UnseenError(
            f"the model's output does not fit {labels}: expected shape "
            f"[{len(x)}, {prepared.outputs}] for {len(x)} examples, found {shape}."
        )


def _check_pixels(shape: object, expected: list[int], classes: int) -> None:
    if shape != expected:
        raise UnseenError(
            f"the model's output does not fit masks of {classes} classes: expected shape "
            f"{expected} for {expected[0]} images, found {shape}.",
            remedy="Take unet, or a network of your own with a logit of every class per pixel.",
        )


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
