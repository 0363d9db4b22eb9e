"""Texts that show all that they are, without characters that steer a terminal or a reader.

A person at a site approves a study by what is printed of it. A line break in its name would print
lines of its own there, and a terminal's codes could hide the true ones.
"""

from __future__ import annotations

import unicodedata

#: Control characters, marks of format such as the direction of writing, halves of characters, and
#: breaks of lines and paragraphs.
STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
#: Marks of format that the spelling of some languages needs.
JOINERS = "\u200c\u200d"


def hidden(text: str, but: str = "") -> str:
    """Return the characters of a text that are not seen as they are.

    Args:
        text: The text.
        but: Those that may be there.

    Example:
        >>> hidden("heart"), hidden("heart\\n")
        ('', '\\n')
    """
    return "".join(
        c for c in text if unicodedata.category(c) in STEERING and c not in JOINERS + but
    )


def visible(value: object) -> str:
    """Return a text as one line that shows every character, those that are not seen as escapes.

    Example:
        >>> print(visible("heart\\n  signed by anna"))
        heart\\n  signed by anna
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
