"""What is wrong with the names of classes, with a domain's arrays and with its labels."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.core.labels import IGNORED, are_masks
from unseen.errors import UnseenError

#: The types of numbers and times.
NUMBERS = (torch.float32, torch.float64)


def check_arrays(
    name: str, classes: Sequence[str] | None, domains: Iterable[Mapping[str, Any]]
) -> None:
    """Refuse classes without a name of their own, and arrays that are not tensors.

    Args:
        name: The data set.
        classes: The names of its classes, None for numbers.
        domains: The fields of each domain.
    """
    if classes is not None and not len(classes):
        raise UnseenError(
            f"data set {name!r} has classes, and none of them: classes={classes!r}.",
            remedy="Name them. Where labels are numbers to predict, or times: classes=None.",
        )
    if twice := [n for n, count in Counter(classes or ()).items() if count > 1]:
        what = f"data set {name!r} has more than one class called {twice[0]!r}."
        raise UnseenError(what, remedy="Rename all but one, or give their rows one code.")
    for domain in domains:
        parts = {key: domain[key] for key in ("x", "y", "validation", "units")} | {**domain["meta"]}
        for key, part in (*parts.items(), *(("views", view) for view in domain["views"])):
            if part is not None and not isinstance(part, Tensor):
                kind = f"{type(part).__module__}.{type(part).__name__}"
                raise UnseenError(
                    f"domain {domain['name']!r} of data set {name!r} has {key!r} of type "
                    f"{kind.removeprefix('builtins.')}; a torch.Tensor was expected.",
                    remedy="Write torch.from_numpy(array), or torch.tensor(values).",
                )


def check_several(name: str, classes: Sequence[str] | None) -> None:
    """Refuse one class alone, whose only output would be read as the logit of a second.

    Note:
        This is of all sites together: the file or folder of a federation's site may hold one of
        their classes.
    """
    if classes is not None and len(classes) == 1:
        raise UnseenError(
            f"data set {name!r} has one class, {classes[0]!r}: there is nothing to learn.",
            remedy="Look at the labels, and name every class, also one without an example here.",
        )


def label_faults(
    classes: Sequence[str] | None, x: Tensor, y: Tensor, masks: bool, times: bool
) -> Iterator[str]:
    """Yield what keeps y from being the labels of the examples x.

    Args:
        classes: The names of the classes, None for numbers and times.
        x: The inputs.
        y: The labels.
        masks: Whether the data set says that labels are masks.
        times: Whether it says that they are times until an event.
    """
    if masks:
        yield from mask_faults(classes, x, y)
    elif times:
        yield from time_faults(y)
    elif are_masks(y):
        yield "a mask for each example, and the data set does not say masks=True"
    elif y.ndim != 1:
        instead = "; write y.squeeze(1)" if y.shape[1:] == (1,) else ""
        yield f"labels of shape {list(y.shape)}; [{len(y)}] was expected{instead}"
    elif classes is None:
        if y.dtype not in NUMBERS or not bool(y.isfinite().all()):
            yield "targets that are not finite float32 or float64 numbers"
    elif y.dtype != torch.int64 or outside(y, len(classes)):
        wrong = sorted(set(y.tolist()) - set(range(len(classes))))[:5]
        expected = f"integers (int64) from 0 to {len(classes) - 1} were expected"
        yield f"labels outside its {len(classes)} classes: {expected}, found {wrong or y.dtype}"


def mask_faults(classes: Sequence[str] | None, x: Tensor, y: Tensor) -> Iterator[str]:
    """Yield what keeps labels y from being masks of these classes for the images x."""
    if classes is None or len(classes) < 2:
        yield "masks, which need two classes or more, the first of them background"
        return
    if x.ndim != 4 or y.ndim != 3 or x.shape[2:] != y.shape[1:] or y.dtype != torch.int64:
        yield (
            f"masks of shape {list(y.shape)} and type {y.dtype} for inputs {list(x.shape)}; "
            "int64 [N, H, W] was expected for images [N, C, H, W]"
        )
        return
    codes = y.unique()
    if outside(codes[codes != IGNORED], len(classes)):
        yield (
            f"mask values {codes.tolist()[:8]} outside its {len(classes)} classes: 0 to "
            f"{len(classes) - 1} were expected, or {IGNORED} for a pixel that does not count"
        )


def time_faults(y: Tensor) -> Iterator[str]:
    """Yield what keeps labels from being times and events."""
    if y.dtype not in NUMBERS or y.shape[1:] != (2,):
        yield f"times and events of shape {list(y.shape)}, {y.dtype}; float32 [N, 2] was expected"
    elif not bool(y.isfinite().all()) or bool((y[:, 0] < 0).any()):
        yield "times that are below 0 or not finite"
    elif bool(((y[:, 1] != 0) & (y[:, 1] != 1)).any()):
        yield "events that are neither 1, seen, nor 0, censored"


def outside(values: Tensor, size: int) -> bool:
    """Return whether codes are not all from 0 to size - 1."""
    return bool(((values < 0) | (values >= size)).any())
