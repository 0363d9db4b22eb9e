"""What a model's outputs [N, C] or [N, C, H, W] say: classes, a score of two, probabilities."""

import torch
from torch import Tensor


def predicted(outputs: Tensor) -> Tensor:
    """Return the class of each row: the largest output; of one column, whether its logit is > 0.

    Outputs [N, C, H, W] have a class for each pixel [N, H, W].
    """
    if outputs.ndim == 4:
        return outputs.argmax(1)
    return (outputs.squeeze(-1) > 0).long() if outputs.shape[-1] == 1 else outputs.argmax(-1)


def class_scores(outputs: Tensor) -> Tensor:
    """Return the logit of class 1, from outputs [N, 1 or 2]: it ranks as the probability does."""
    return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs[:, 1] - outputs[:, 0]


def probabilities(outputs: Tensor) -> Tensor:
    """Return the softmax of logits [N, C]; for one logit, that of class 1, two probabilities.

    Of logits [N, C, H, W] it is that of each pixel.

    Example:
        >>> probabilities(torch.tensor([[0.0]])).tolist()
        [[0.5, 0.5]]
    """
    if outputs.ndim == 4:
        return outputs.softmax(1)
    if outputs.shape[-1] == 1:
        return torch.cat([torch.sigmoid(-outputs), torch.sigmoid(outputs)], dim=-1)
    return outputs.softmax(-1)
