"""Whether a method can train the clients of a task, and a network with BatchNorm their batches."""

import copy
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core import Method
from unseen.core.client import Client, Split
from unseen.core.global_draws import global_draws
from unseen.errors import UnseenError
from unseen.methods.unfit import unfit
from unseen.studies.execution.checks import check_completed, check_model, lacks
from unseen.studies.execution.prepare import Prepared
from unseen.studies.execution.runtime import adapted, as_model, blueprint
from unseen.studies.execution.setting import Setting
from unseen.studies.settings.study import StudySpec


def check_batches(module: torch.nn.Module, roster: Mapping[str, Client], study: StudySpec) -> None:
    """Refuse a batch of one for a model with BatchNorm: it has no variance."""
    if not any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        return
    batch = study.training.batch_size
    for name, client in roster.items():
        n = len(client.split("train"))
        one_left = batch == 1 or (n % batch == 1 and not study.training.drop_last)
        if one_left and not takes_one(module, client.split("train")):
            what = (
                f"client {name!r} has {n} training examples, so that with batch_size = {batch} a "
            )
            what += "batch of one remains, which BatchNorm cannot normalise."
            way = "Set training.drop_last = true, or another" if batch > 1 else "Set another"
            raise UnseenError(what, remedy=f"{way} batch size.")


def takes_one(module: torch.nn.Module, split: Split) -> bool:
    """Return whether a network trains on one example: BatchNorm of maps has many numbers of it."""
    network, (x, _) = copy.deepcopy(module).train(), split.batch(slice(0, 1))
    try:
        with torch.no_grad(), global_draws():
            network(x.to(next(network.parameters(), x).device))
    except ValueError:  # torch: more than one value per channel
        return False
    return True


def check_method(
    setting: Setting, prepared: Prepared, method: Method, network: nn.Module, seed: int
) -> str:
    """Check a method on a task's clients and network.

    Args:
        setting: What all jobs share.
        prepared: The clients.
        method: The method, composed and not yet completed for its network.
        network: The study's network.
        seed: The seed of its first weights.

    Returns:
        Why data or model cannot serve the method; "" where they can.
    """
    study = setting.study
    roster = method.gather(prepared.sources) if method.gather else prepared.sources
    if not method.fits:
        check_batches(network, roster, study)
    if reason := lacks(method, network, prepared):
        return reason
    if prepared.times and (reason := unfit(method.name, study.training.build("times"))):
        return reason
    plan = blueprint(setting, prepared, seed, len(roster), network)
    if reason := method.unfit(plan):
        return reason
    if method.adapt is not None or method.sized is not None:
        plan = blueprint(setting, prepared, seed, len(roster))
        trained = adapted(method, plan)
        check_model(trained, prepared, study)
        method = method.completed(as_model(trained, study, prepared.shape, "cpu"), plan)
    check_completed(method, study, len(roster))
    return ""


def left_out(
    setting: Setting, prepared: Prepared, method: Method, network: nn.Module, seed: int
) -> list[str]:
    """Return a sentence on each member that a method goes without; see `check_method`."""
    plan = blueprint(setting, prepared, seed, len(prepared.sources), network)
    return [
        f"{method.name} goes without its member {name}, which {reason}."
        for name, reason in method.left_out(plan).items()
    ]
