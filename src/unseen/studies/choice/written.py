"""The files of an answer: a page to open, a page to read, and the data that training takes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unseen.core.atomic import write_atomically
from unseen.studies.choice.answer import Choice
from unseen.studies.choice.choice_html import HTML, html
from unseen.studies.choice.choice_page import next_command, page

#: The page to read, and the data.
PAGE, DATA = "choice.md", "choice.json"


class Written(NamedTuple):
    """Where the files of an answer are."""

    html: Path
    page: Path
    data: Path


def write(choice: Choice, factors: Sequence[float], folder: Path) -> Written:
    """Write the pages and the file that `unseen train --recipe` reads.

    Args:
        choice: The answer.
        factors: What learning rates were multiplied by.
        folder: Where they go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = Written(folder / HTML, folder / PAGE, folder / DATA)
    data = json.dumps(choice.to_json(), indent=1, ensure_ascii=False) + "\n"
    write_atomically(files.page, page(choice, factors).encode())
    write_atomically(files.html, html(choice, next_command(files.data)).encode())
    write_atomically(files.data, data.encode())
    return files
