"""What a script or notebook defines, for processes that cannot import it."""

import re
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from unseen.studies.settings.study import StudySpec

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
