"""Pickles of arrays, read without running what else a pickle may name."""

import io
import pickle
import zlib
from collections.abc import Callable
from typing import Any
from zipfile import BadZipFile

#: What a damaged archive or pickle raises, and arrays of the wrong kind or shape.
UNREADABLE = (
    OSError, EOFError, zlib.error, BadZipFile, pickle.UnpicklingError, ValueError, TypeError,
    KeyError, IndexError, AttributeError, RuntimeError,
)  # fmt: skip


class ArrayUnpickler(pickle.Unpickler):
    """Reads lists, tuples, numbers, strings and numpy arrays, and refuses everything else.

    Note:
        A pickle is a program: it may name any function and call it. The names that rebuild an array
        are the only ones admitted here. Strings of Python 2 are read as Latin-1, byte for byte.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        """Return the function or class of that name, if it is one of numpy's that arrays need."""
        import numpy as np

        rebuild: Callable[..., Any] = np.zeros(0).__reduce__()[0]  # type: ignore[assignment]
        admitted: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): rebuild,
            ("numpy._core.multiarray", "_reconstruct"): rebuild,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _latin1,
        }
        if (module, name) not in admitted:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no array needs and which was not run"
            )
        return admitted[module, name]


def _latin1(text: str, encoding: str) -> bytes:
    """What Python 3 writes for the bytes of an array in protocol 2, and nothing more general."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")
