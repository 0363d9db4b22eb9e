"""What a study's `[privacy]` table makes of its jobs, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from unseen.core.client import Client
from unseen.core.exchange import Method
from unseen.core.round import Backend
from unseen.datasets.dataset import DataSet
from unseen.datasets.totals import Totals
from unseen.engine.inprocess import InProcess
from unseen.errors import UnseenError
from unseen.privacy import channel, kinds
from unseen.spec.study import StudySpec

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
    ranges, totals = study.privacy.columns, Totals.of(data)
    if totals is None and ranges is not None:
        raise UnseenError(
            f"privacy.columns is for tables, and {data.name} is none.", remedy="Leave it out."
        )
    if totals is not None and ranges is not None:
        totals.of_ranges(ranges)
    if totals is None or ranges is not None or not study.privacy.noised:
        return
    also = f", the label {totals.label!r} among them" if totals.label is not None else ""
    example = ", ".join(f"{name} = [0, 100]" for name in totals.columns)
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
        raise UnseenError(
            "privacy: training.oversample repeats examples, so that one of them may enter a step "
            "many times and no bound on its part holds.",
            remedy="Leave it out.",
        )
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
    if isinstance(kind, kinds.Clear):
        return method
    channel.check(kind, study.privacy.server, method)
    looks = ["record = gram"] if "gram" in study.record else []
    looks += ["locals"] if "locals" in study.save else []
    looks += ["cross_evaluation"] if study.cross_evaluation else []
    if looks:
        raise UnseenError(
            f"{', '.join(looks)} looks at updates in the clear, which nobody sees on the channel "
            f"{study.privacy.channel!r}.",
            remedy="Leave it out, or take the channel 'clear'.",
        )
    if study.privacy.server == "blind" and study.save:
        raise UnseenError(
            f"save = {list(study.save)} writes the server's model, and with privacy.server = "
            "'blind' it has none. The sites hold it."
        )
    return method


def behind(study: StudySpec, method: Method, backend: Backend) -> tuple[Backend, Method]:
    """Return the backend behind the study's channel, and the method as the server plays it."""
    kind = channel.read(study.privacy.channel, study.privacy.server)
    if not isinstance(kind, kinds.Clear):
        if isinstance(backend, InProcess):
            names = sorted(backend.clients)
            backend = channel.wrap(kind, study.privacy.server, method, backend, names)
        if not backend.carries_channel():
            raise UnseenError(
                f"{type(backend).__name__} does not carry privacy.channel = "
                f"{study.privacy.channel!r}: updates would travel in the clear.",
                remedy="Run the study in process, or leave the channel out.",
            )
    return backend, backend.played(method)
