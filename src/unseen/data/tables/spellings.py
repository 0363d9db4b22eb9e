"""What a cell may hold beside the digits of its number, and how large a number may be."""

import re

#: The largest size of a number: squares, and their sum over rows, stay finite.
LARGEST = 1e150
#: Minus signs and dashes that stand for the minus of ASCII.
_MINUS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d"), "-")
#: The apostrophe by which Excel keeps a number as text, and signs of currencies.
_MARKS = "'\u2018\u2019$\u00a2\u00a3\u00a5\u20a9\u20ac\u20b9\u20bf"

#: A word, as `HashingVectorizer` reads them: two letters, digits or underscores, or more.
WORD = re.compile(r"\b\w\w+\b")


def without_marks(text: str) -> str:
    """Return a cell with the minus of ASCII, without a currency or an apostrophe in front.

    Example:
        >>> without_marks("\u22121.5"), without_marks("-$12.50"), without_marks("'12")
        ('-1.5', '-12.50', '12')
    """
    plain = text[:1].translate(_MINUS) + text[1:]
    if "e" in plain.lower():  # the exponent's sign
        plain = plain.translate(_MINUS)
    sign = plain[:1] if plain[:1] in ("+", "-") else ""
    return sign + plain.removeprefix(sign).lstrip(_MARKS + " ")


def words(cell: str) -> int:
    """Return how many words a cell has.

    Example:
        >>> words("Check out my channel!!! a 1 :)")
        4
    """
    return len(WORD.findall(cell))
