"""Of how many rows and steps an answer of training is."""

from unseen.core import Client, Local
from unseen.core.parts import innermost
from unseen.methods.local.train import Train
from unseen.privacy.dp import steps_of


def trained_counts(client: Client, local: Local, validates: bool) -> tuple[int, int | None, int]:
    """Return the training examples here, the steps of a reply, and the examples that it is of.

    `validates` says whether the answer tells something of the validation rows, too.
    """
    train = len(client.train) if client.train is not None else 0
    behind = min(train, len(client.split("validation"))) if validates else train
    local = innermost(local)
    if not isinstance(local, Train):
        return train, None, behind
    steps = steps_of(train, local.training) if train else 0
    return train, steps, min(behind, steps * local.training.batch_size)
