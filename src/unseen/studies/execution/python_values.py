"""Settings given as Python objects, turned into the texts that records hold."""

from collections.abc import Mapping
from typing import Any

from unseen.data.tables.frames import OPTIONS, expression_of
from unseen.errors import UnseenError
from unseen.ranges import with_one_name


def as_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with frames, classes and functions as texts.

    Args:
        settings: The settings of a study; `dataset` may be a data frame or arrays, with `site`,
            `label` and options of `table` beside it, `model` a class or function, and each of
            `methods` a function.
    """
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
