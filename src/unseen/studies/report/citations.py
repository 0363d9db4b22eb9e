"""The BibTeX of what ran: this package, by its metadata, and the papers of its methods."""

import re
import warnings
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata

from unseen.core.exchange import Reference
from unseen.errors import UnseenError
from unseen.version import RELEASED

#: A field that still has the word which an author is to replace.
_PLACEHOLDER = re.compile(r"\b(author|title)\s*=\s*[{\"]+\s*(author|title|name)s?\s*[}\"]", re.I)


def own_entry() -> str:
    """Return the BibTeX entry of this package.

    Raises:
        UnseenError: The package is not installed, so that it has no metadata.
    """
    try:
        about = metadata("unseen")
    except PackageNotFoundError:
        raise UnseenError(
            "unseen has no metadata, because it is not installed.",
            remedy="In its checkout, run pip install .",
        ) from None
    addresses = dict(line.split(", ", 1) for line in about.get_all("Project-URL") or ())
    group = about["Author"]
    fields = {
        "author": group and f"{{{group}}}",  # in braces, or BibTeX reads a first and a last name
        "title": f"{about['Name']}: {about['Summary']}",
        "version": about["Version"],
        "year": RELEASED[:4],
        "url": addresses.get("Repository", ""),
    }
    lines = [f"  {name:<7} = {{{value}}}" for name, value in fields.items() if value]
    return "@software{unseen,\n" + ",\n".join(lines) + "\n}"


def bibtex(cited: Iterable[tuple[str, Reference]]) -> str:
    """Return the BibTeX entries of this package and of methods, once each.

    An entry with a placeholder is left out, and a warning names its method.

    Args:
        cited: Each method's name with a reference of it.
    """
    entries = []
    with suppress(UnseenError):
        entries.append(own_entry())
    for name, reference in cited:
        if placeholder := _PLACEHOLDER.search(reference.bibtex):
            warnings.warn(
                f"the citations leave out {name}: its BibTeX entry still has the placeholder "
                f"{placeholder[0]}. Complete the entry where the method is defined.",
                stacklevel=2,
            )
        elif reference.bibtex:
            entries.append(reference.bibtex)
    return "\n\n".join(dict.fromkeys(entries))
