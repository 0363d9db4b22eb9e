"""Settings given as Python objects, turned into the texts that records hold."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from inspect import signature
from typing import Any

from unseen.core.apply import Add, Descend
from unseen.core.losses import CrossEntropy
from unseen.core.optimiser import SGD, Adam, FedOpt, fedadagrad, fedadam, fedyogi
from unseen.core.survival import Cox, Hazards
from unseen.data.tables.frames import OPTIONS, expression_of
from unseen.errors import UnseenError
from unseen.expression import Call, text
from unseen.ranges import with_one_name

#: The option that a text always names: searches begin around it.
RATE = "lr"
#: Second moment of a server's optimiser -> what makes it by name.
FED_OPT = {"adam": fedadam, "yogi": fedyogi, "adagrad": fedadagrad}


def as_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with frames, classes, functions and recipes as texts.

    Args:
        settings: The settings of a study; `dataset` may be a data frame or arrays, with `site`,
            `label` and options of `table` beside it, `model` a class or function, each of `methods`
            a function, and `training` an `unseen.Training`.
    """
    from unseen.methods.recipe import Training

    values = dict(settings)
    if not isinstance(values.get("dataset", ""), str) and not callable(values["dataset"]):
        values = with_one_name("table", values)
        options = {name: values.pop(name) for name in OPTIONS if name in values}
        own = {"domain": options.pop("domain", None), "label": options.pop("label", None)}
        if "groups" in options:
            groups = options["groups"]
            values["groups"] = options["groups"] = (
                (groups,) if isinstance(groups, str) else tuple(groups)
            )
        values["dataset"] = expression_of(values["dataset"], **own, **options)
    for name in ("dataset", "model"):
        if callable(values.get(name)):
            values[name] = path_of(values[name])
    methods = values.get("methods")
    if isinstance(methods, list | tuple):
        values["methods"] = [path_of(m) if callable(m) else m for m in methods]
    if isinstance(values.get("training"), Training):
        values["training"] = recipe_of(values["training"])
    return values


def path_of(part: Any) -> str:
    """Return `module:name` of a class or function, by which every process imports it.

    Raises:
        UnseenError: It is not at the top of a module.
    """
    name, module = getattr(part, "__qualname__", ""), getattr(part, "__module__", "")
    if not name.isidentifier():
        raise UnseenError(
            f"{name or part!r} cannot be imported by name: a model or method of your own is a "
            "class or function at the top of a module or notebook.",
            remedy="Give it a name there, with def or class.",
        )
    return f"{module}:{name}"


def recipe_of(training: Any) -> dict[str, Any]:
    """Return an `unseen.Training` as the `[training]` table of a study.

    Raises:
        UnseenError: It holds a part that a table cannot name.
    """
    plain = {
        "epochs", "steps", "batch_size", "drop_last", "keep_optimiser", "buffers", "weights",
        "average", "ensemble",
    }  # fmt: skip
    recipe = {name: getattr(training, name) for name in plain}
    recipe["optimiser"] = part_text(training.optimiser)
    recipe["schedule"] = part_text(training.schedule)
    recipe |= _loss_of(training.loss) | {"server": _server_of(training.server)}
    if training.augment is not None or training.sampling is not None:
        raise UnseenError(
            "a study's recipe names its augmentation by a text and has no sampling of one's own.",
            remedy='Write training={"augment": "flip", ...}.',
        )
    return {name: value for name, value in recipe.items() if value is not None}


def _loss_of(loss: Any) -> dict[str, Any]:
    """The settings of a loss; the kind of labels decides what is minimised beyond these."""
    if type(loss) in (Cox, Hazards):
        return {"loss": part_text(loss)}
    if type(loss) is not CrossEntropy:
        raise UnseenError(
            f"a study cannot name the loss {loss!r}: it chooses the loss by the labels, with "
            "smoothing and balance of a CrossEntropy, Cox or Hazards as they are given.",
            remedy="Leave loss out, or write the loss as a method of your own.",
        )
    return {"smoothing": loss.smoothing, "balanced": loss.balanced}


def _server_of(server: Any) -> str:
    """A server's step as its text."""
    if type(server) is Add:
        return "add"
    optimiser = server.optimiser if type(server) is Descend else None
    if type(optimiser) in (SGD, Adam):
        return part_text(optimiser)
    if type(optimiser) is FedOpt:
        builder = FED_OPT[optimiser.second]
        options = {
            name: getattr(optimiser, name)
            for name, parameter in signature(builder).parameters.items()
            if name == RATE or getattr(optimiser, name) != parameter.default
        }
        if builder(**options) == optimiser:
            return text((Call(builder.__name__, options),))
    raise UnseenError(
        f"a study cannot name the server's step {server!r}: it adds the combined update, or takes "
        f"a step of sgd, adam, {', '.join(build.__name__ for build in FED_OPT.values())}.",
        remedy="Take one of these, or write the step as a method of your own.",
    )


def part_text(part: Any) -> str:
    """Return a part of a recipe as its text, with its rate and what differs from its defaults.

    Example:
        >>> from unseen.core.optimiser import SGD
        >>> part_text(SGD(lr=0.05, momentum=0.9))
        'sgd(lr=0.05, momentum=0.9)'
    """
    if not is_dataclass(part):
        raise UnseenError(f"{part!r} has no text that a study can hold.")
    options = {
        f.name: getattr(part, f.name)
        for f in fields(part)
        if f.init and (f.name == RATE or getattr(part, f.name) != f.default)
    }
    return text((Call(type(part).__name__.lower(), options),))
