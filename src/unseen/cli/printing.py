"""Standard output and error in any encoding."""

import codecs
import sys
from io import TextIOWrapper

#: The name of the way in which letters are written that an encoding lacks.
LENIENT = "unseen-lenient"


def lenient() -> None:
    """Write letters that the encoding of standard output or error lacks as question marks.

    Bytes of file names that are not UTF-8 are written as they are.
    """
    codecs.register_error(LENIENT, _substitute)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=LENIENT)


def _substitute(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return a surrogate's byte, or a question mark, for the first letter that is lacking."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    code = ord(error.object[error.start])
    is_byte = 0xDC80 <= code <= 0xDCFF
    return bytes([code - 0xDC00]) if is_byte else "?", error.start + 1
