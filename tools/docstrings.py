"""Docstrings as the site's reference shows them: examples as blocks of code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_SESSION = re.compile(r"(?<=\n\n)(>>>.*?)(?=\n\n|\Z)", re.DOTALL)

#: What stays as it is: code, examples, and equations, which are indented.
_CODE = re.compile(
    r"(```.*?```|`[^`]*`|^ *>>>.*$|(?<=\n\n) {4}[^\n]*(?:\n {4}[^\n]*)*)", re.M | re.DOTALL
)


class Examples(Extension):
    """Give examples of docstrings the form that griffe knows."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = changed(obj.docstring.value)


def changed(text: str) -> str:
    """Return a docstring whose examples and angle brackets Markdown can show."""
    text = _SESSION.sub(r"```pycon\n\1\n```", text)
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.M)
    pieces = _CODE.split(text)
    return "".join(t if i % 2 else re.sub(r"<(?=\w)", "&lt;", t) for i, t in enumerate(pieces))
