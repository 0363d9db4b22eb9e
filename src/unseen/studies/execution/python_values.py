"""Settings given as Python objects, turned into the texts that records hold."""

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from unseen.data.tables.frames import OPTIONS, expression_of
from unseen.errors import UnseenError
from unseen.ranges import with_one_name
from unseen.studies.settings.study import StudySpec


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


T = TypeVar("T")


def of_script(study: StudySpec) -> dict[str, object]:
    """Return what of the running script or notebook a study names: no process can import it."""
    texts = " ".join((study.model or "", study.dataset, *study.methods))
    here = vars(sys.modules["__main__"])
    return {name: here[name] for name in re.findall(r"__main__:(\w+)", texts) if name in here}


def with_script(own: Mapping[str, object], run: Callable[..., T], *arguments: object) -> T:
    """Return what `run` returns where the script's parts have their names."""
    vars(sys.modules["__main__"]).update(own)
    return run(*arguments)
