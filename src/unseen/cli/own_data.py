"""`unseen data check` of a user's own file or folder, and the command that goes on with it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unseen.cli.console import Columns
    from unseen.data.summary import Report
    from unseen.data.tables.sheet import Sheet
    from unseen.expression import Call

#: The share of the larger of two classes from which accuracy says little.
RARE = 0.7
#: What a study says of single cells that are no numbers, or too large.
OF_CELLS = "words in others|nearly (a )?number|squares of|in the numeric column|is not a number"
#: Different words in a column of numbers, and their share of its cells, up to which they are gaps.
FEW_WORDS, SHARE_OF_WORDS = 3, 0.2


def check_own(name: str, settings: Sequence[str], columns: Columns) -> tuple[Report, str]:
    """Return what is found in a csv file or a folder of images, and the command that goes on.

    The options are those of `unseen choose`.
    """
    from unseen.data.image_files import folder
    from unseen.data.summary import inspect
    from unseen.data.tables import delimited, table_files
    from unseen.expression import parse
    from unseen.studies.settings.named import parse_override

    options_given = dict(map(parse_override, settings))
    from unseen.studies.choice.choice_request import of_images, source_of

    images = of_images(name)
    reading = folder.OPTIONS if images else delimited.OPTIONS
    own = {key: value for key, value in options_given.items() if key in reading}
    own |= {"event": columns.event} if columns.event is not None else {}
    data_dir = Path(name) if images else None
    with table_files.reading_once():
        _, about = source_of(name, columns.site, columns.label, columns.task, own)
        (call,) = parse(about["dataset"])
        report = inspect(call, data_dir)
        more = {} if images else remedies(call, report)
    if "metric" not in options_given and (rare := _rare(report)):
        more["metric"] = rare
    words = [name, *(f"--{key}={value}" for key, value in vars(columns).items() if value)]
    unchanged = [s for s in settings if parse_override(s)[0] not in more]
    changed = [f"{key}={value}" for key, value in more.items()]
    every = [*words, *unchanged, *changed]
    return report, " ".join(["unseen choose", *map(_quoted, every)])


def remedies(call: Call, report: Report) -> dict[str, Any]:
    """Return the options of a table with which a study takes it, beside those that are given."""
    from unseen.data.summary import inspect

    more: dict[str, Any] = {}
    while report.refused:
        options = {**call.arguments, **more}
        remedy = _next(options, report)
        if not remedy or all(options.get(key) == value for key, value in remedy.items()):
            break
        more |= remedy
        report = inspect(replace(call, arguments={**call.arguments, **more}), None)
    return _settled(call, more, report)


def _settled(call: Call, more: dict[str, Any], report: Report) -> dict[str, Any]:
    """Return these options and those of the remarks that a study prints, if it runs with them."""
    from unseen.data.summary import inspect
    from unseen.data.tables.check_matrix import Remark
    from unseen.data.tables.sheet import names_of

    every = dict(more)
    options = [note.options for note in report.notes if isinstance(note, Remark)]
    for key, values in (pair for own in options for pair in own.items()):
        there = names_of(every.get(key, call.arguments.get(key)) or ())
        every[key] = [*dict.fromkeys([*there, *values])]
    if every == more or report.refused:
        return more
    settled = inspect(replace(call, arguments={**call.arguments, **every}), None)
    return more if settled.refused else every


def _next(options: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return an option that mends what a study refuses; none where no option does."""
    from unseen.data.summary import sheet_of
    from unseen.data.tables.hashing import looks_like_text
    from unseen.data.tables.remarks import dates
    from unseen.data.tables.sheet import names_of

    if "missing_label=" in report.refused:
        return {"missing_label": "drop"}
    if "too small" in report.refused or "a source needs one" in report.refused:
        small = [domain.name for domain in report.domains if domain.count < 2]
        return {"without": [*names_of(options.get("without", ())), *small]} if small else {}
    if re.search(OF_CELLS, report.refused):
        return _of_words(options, report.refused)
    names = [column.name for column in report.columns if column.kind == "identifier"]
    if not names or not re.search("looks? like (an )?identifier", report.refused):
        return {}
    sheet = sheet_of(None, options)
    texts = [n for n in names if looks_like_text(sheet, n) and not dates(sheet, n)]
    remedy = {"drop": [n for n in names if n not in texts], "text": texts}
    return {k: [*names_of(options.get(k, ())), *v] for k, v in remedy.items() if v}


def _of_words(options: Mapping[str, Any], refused: str) -> dict[str, Any]:
    """Return the remedy for a column that mixes numbers and words.

    Where all are numbers with a decimal comma it is that; few other words are missing values.
    """
    from unseen.data.summary import sheet_of
    from unseen.data.tables.sheet import names_of

    sheet = sheet_of(None, options)
    named = [name for name in sheet.columns if repr(name) in refused]
    name = min(named, key=lambda name: refused.index(repr(name)), default=None)
    if name is None or name == options["domain"]:
        return {}
    cells = sheet.columns[name]
    words = cells.not_numbers
    if options.get("decimal") is None and decimal_commas(sheet, words):
        return {"decimal": ","}
    rows = int(cells.counts[~cells.are_numbers].sum())
    if 0 < len(words) <= FEW_WORDS and rows < SHARE_OF_WORDS * cells.present:
        return {"missing": [*names_of(options.get("missing") or ()), *words]}
    label = name == options["label"]
    return {} if label else {"drop": [*names_of(options.get("drop") or ()), name]}


def decimal_commas(sheet: Sheet, words: Sequence[str]) -> bool:
    """Return whether words are numbers with a decimal comma, and no column has decimal points."""
    from unseen.data.tables.dialect import SURE, number

    columns = sheet.columns.values()
    points = any(cells.all_numbers and cells.have_point for cells in columns)
    every = all(number(word, ",") is not None for word in words)
    return every and not points and any(map(SURE.fullmatch, words))


def _rare(report: Report) -> str:
    counts = [count for count in report.counts.values() if count]
    two = len(counts) == 2 and not any(domain.targets for domain in report.domains)
    return "auroc" if two and max(counts) > RARE * sum(counts) else ""


def _quoted(word: str) -> str:
    """Return a word as a shell takes it, in double quotes where it has single ones."""
    plain = "'" in word and not {*word} & {*'"$`!\\'}
    return f'"{word}"' if plain else shlex.quote(word)
