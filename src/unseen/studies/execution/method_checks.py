"""Whether a method can train the clients of a task."""

from torch import nn

from unseen.core import Method
from unseen.methods.unfit import unfit
from unseen.studies.execution.batch_sizes import check_batches
from unseen.studies.execution.checks import check_completed, check_model, lacks
from unseen.studies.execution.prepare import Prepared
from unseen.studies.execution.runtime import adapted, as_model, blueprint
from unseen.studies.execution.setting import Setting


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
