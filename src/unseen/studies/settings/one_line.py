"""Settings that are texts which show all that they are; see `unseen.visible`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from unseen.errors import UnseenError
from unseen.studies.settings.wording import short
from unseen.visible import hidden

REMEDY = "Leave it out; a quoted text within an expression may have it as an escape, such as \\n."


def _checked(text: str, but: str) -> str:
    if steering := hidden(text, but):
        first = steering[0]
        where = f"U+{ord(first):04X} at place {text.index(first) + 1} of {short(text)}"
        what = f"it must be one line without hidden characters; found {where}."
        raise UnseenError(what, remedy=REMEDY, found=where)
    return text


def _name(text: str) -> str:
    return _checked(text, "")


def _expression(text: str) -> str:
    return _checked(text, "\t")  # which separates the cells of some tables


#: A name or title, and an expression, that show all that they are.
Line = Annotated[str, AfterValidator(_name)]
Expression = Annotated[str, AfterValidator(_expression)]
