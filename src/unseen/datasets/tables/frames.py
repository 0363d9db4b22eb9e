"""A data frame or arrays as a data set: written once, by digest, as the csv file that jobs read."""

import csv
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unseen.core.atomic import write_atomically
from unseen.datasets.tables.cells import Cells
from unseen.datasets.tables.identifiers import check_almost, check_identifiers
from unseen.datasets.tables.sheet import Sheet, names_of, with_usual
from unseen.errors import UnseenError, nearest, optional
from unseen.expression import Call, text

#: Where frames lie, so that a study that is run again finds its data.
FOLDER = "frames"
#: Options of `table` that say how a file is written, which a frame is not.
OF_FILES = ("separator", "decimal", "encoding")
#: Options of `table` that may stand beside a frame; those of files are refused with a reason.
OPTIONS = (
    "domain", "label", "event", "task", "groups", "unit", "text", "drop", "missing", "categorical",
    "text_features", "text_pairs", "standardise", "missing_label", "identifiers", "least",
    "without", "positive", *OF_FILES,
)  # fmt: skip
#: What errors call a frame, and a row of it.
NAME, PLACE = "the data frame", "row {} (counted from 0)"


def expression_of(frame: Any, domain: str | None, label: str | None, **options: Any) -> str:
    """Return the data set's expression for a pandas data frame or arrays.

    The rows are written to a csv file in the user's cache (`$XDG_CACHE_HOME/unseen/frames`), which
    nobody else may read: jobs run in processes of their own, and a study that is run again must
    find the same data. The file's name is its digest.

    Args:
        frame: A data frame; or (X [N, F], y [N], sites [N]), where y [N, 2] is a time and an event,
            as is an array of records of a boolean and a number; or a mapping of columns to arrays
            [N].
        domain: The column that names the site; None for the third of three arrays.
        label: The column that holds the label; None for the second of three arrays.
        options: Of `table`, such as `groups` or `unit` (`OPTIONS`). Columns of words are
            categorical, and those named in `categorical` as well; an empty cell is missing, and so
            is what `missing` lists.

    Raises:
        UnseenError: The columns are not there, or hold what no table can.
    """
    if files := [name for name in OF_FILES if options.get(name) is not None]:
        what = f"{files[0]} says how a file is written, and a data frame is not in one."
        raise UnseenError(what, remedy="Leave it out.")
    pandas = optional("pandas", "a data frame needs", "pandas", "name a csv file")
    if isinstance(frame, tuple | list):
        frame, domain, label, event = _of_arrays(pandas, frame)
        options |= {"event": event} if event is not None else {}
    elif isinstance(frame, Mapping):
        try:
            frame = pandas.DataFrame(dict(frame))
        except ValueError as error:
            raise UnseenError(f"dataset must have a column [N] for each name: {error}.") from None
    if not isinstance(frame, pandas.DataFrame):
        raise UnseenError(
            "dataset must be an expression, a data frame or arrays (X, y, sites); found "
            f"{type(frame).__name__}."
        )
    frame = with_plain_names(frame)
    roles = {"domain": domain, "label": label}
    roles |= {"event": options["event"]} if "event" in options else {}
    for role, column in roles.items():
        if column is None:
            raise UnseenError(f"dataset: a data frame needs {role}=COLUMN.")
        roles[role] = name = str(column).strip()
        if name not in frame.columns:
            raise nearest(f"column (for {role})", name, frame.columns)
    domain, label = roles.pop("domain"), roles.pop("label")
    options |= roles
    _check_shape(frame)
    options = {key: _several(key, value) for key, value in options.items()}
    options["categorical"] = _categorical(pandas, frame, {domain, label}, options)
    if options.get("missing") is not None:
        options["missing"] = list(dict.fromkeys(["", *names_of(options["missing"])]))
    if not {"task", "event"} & options.keys() and frame[label].dtype.kind == "f":
        whole = np.mod(frame[label].dropna().to_numpy(), 1) == 0
        options["task"] = "classification" if whole.all() else "regression"
    content = csv_of(frame)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unseen" / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.csv"
    if not path.exists():
        write_atomically(path, content)
        path.chmod(0o600)
    call = Call("table", {"path": str(path), "domain": domain, "label": label, **options})
    return text((call,))


def as_frame(sheet: Sheet, path: Path) -> Sheet:
    """Return a sheet as errors name it, if its file is one that `expression_of` wrote."""
    if path.parts[-3:-1] != ("unseen", FOLDER):
        return sheet
    return replace(sheet, name=NAME, lines=range(len(sheet.lines)), place=PLACE)


def _check_shape(frame: Any) -> None:
    if not len(frame):
        raise UnseenError(f"{NAME} has no rows.")
    if "" in frame.columns:
        raise UnseenError(
            f"{NAME} has no name for column {[*frame.columns].index('')} (counted from 0).",
            remedy="Name it, as by rename(columns={'': NAME}), or drop it.",
        )
    if twice := sorted({*frame.columns[frame.columns.duplicated()]}):
        raise UnseenError(
            f"{NAME} has more than one column called {twice[0]!r}:",
            remedy="rename or remove all but one.",
        )


def _several(key: str, value: Any) -> Any:
    """A lone name as a list of one; all else as it is, so that a study that is run again is it."""
    several = ("groups", "drop", "text", "missing", "categorical", "without")
    return [value] if key in several and isinstance(value, str) else value


def _categorical(
    pandas: Any, frame: Any, others: set[str | None], options: Mapping[str, Any]
) -> list[str]:
    """The features that are categories for pandas, or words alone, and those named so.

    Of texts among which there are numbers the table decides, as it does of a csv file's: a word at
    one site must not turn the numbers of all others into categories.
    """
    several = [name for key in ("groups", "drop", "text") for name in options.get(key) or ()]
    apart = {*others, options.get("event"), options.get("unit"), *several}
    is_number = pandas.api.types.is_numeric_dtype
    words = [n for n in frame.columns if n not in apart and not is_number(frame[n].dtype)]
    if odd := [name for name in words if frame[name].dtype.kind in "mM"]:
        raise UnseenError(
            f"column {odd[0]!r} holds timestamps, which tables do not support.",
            remedy=f"Make a number of it, such as days since a date, or write drop={odd!r}.",
        )
    named = options.get("categorical") or []
    sheet = _sheet(frame, words, options)
    if options.get("identifiers") != "keep":
        check_identifiers(sheet, [name for name in words if name not in named])

    def words_alone(name: str) -> bool:
        return not (_are_flags(frame[name]) or sheet.column(name).are_numbers.any())

    kind = pandas.CategoricalDtype
    own = [name for name in words if isinstance(frame[name].dtype, kind) or words_alone(name)]
    for name in own:
        if (
            not isinstance(frame[name].dtype, kind)
            and name not in named
            and sheet.column(name).present
        ):
            check_almost(sheet, name)
    return [*own, *(name for name in named if name not in own)]


def _sheet(frame: Any, names: Sequence[str], options: Mapping[str, Any]) -> Sheet:
    missing = options.get("missing")
    empty, columns = with_usual(missing or ()), {}
    for name in names:
        cells = frame[name].astype(object).where(frame[name].notna(), "").map(str)
        columns[name] = Cells.of([*map(str.strip, cells)]).without(empty)
    return Sheet(NAME, columns, range(len(frame)), place=PLACE)


def with_plain_names(frame: Any) -> Any:
    """Return a data frame whose columns' names are texts, without the blanks around them."""
    return frame.set_axis([str(name).strip() for name in frame.columns], axis=1)


def csv_of(frame: Any, missing: str = "") -> bytes:
    """Return a data frame as a csv file, with 0 and 1 for no and yes.

    Args:
        frame: The data frame.
        missing: What a missing cell is written as.
    """
    frame = with_plain_names(frame)
    columns = [_flags_as_numbers(frame.iloc[:, j]) for j in range(frame.shape[1])]
    by_place = dict(enumerate(columns))  # since names may occur twice
    file = type(frame)(by_place, index=frame.index).set_axis(frame.columns, axis=1)
    # In quotes, since a lone carriage return would end a row otherwise.
    content: str = file.to_csv(index=False, na_rep=missing, quoting=csv.QUOTE_NONNUMERIC)
    return content.encode()


def _flags_as_numbers(column: Any) -> Any:
    if _are_flags(column):  # whole numbers, although a gap would make 1.0 of 1
        return column.astype(object).astype("boolean").astype("Int8")
    if column.dtype.kind != "O":
        return column
    return column.map(lambda cell: int(cell) if isinstance(cell, bool | np.bool_) else cell)


def _are_flags(column: Any) -> bool:
    if column.dtype.kind != "O":
        return bool(column.dtype.kind == "b")
    present = column.dropna()
    return len(present) > 0 and all(isinstance(cell, bool | np.bool_) for cell in present)


def _of_arrays(pandas: Any, arrays: Sequence[Any]) -> tuple[Any, str, str, str | None]:
    if len(arrays) != 3:
        raise UnseenError(f"dataset: arrays are three, (X, y, sites); found {len(arrays)}.")
    x, y, sites = (np.asarray(array) for array in arrays)
    own = arrays[0] if isinstance(arrays[0], pandas.DataFrame) else None
    if x.ndim != 2:
        raise UnseenError(
            f"X has the axes [N, F]; found {list(x.shape)}.",
            remedy="Images are folders SITE/CLASS/image.png, or a function module:name.",
        )
    if len({len(x), len(y), len(sites)}) > 1:
        raise UnseenError(f"X, y and sites differ in length: {len(x)}, {len(y)}, {len(sites)}.")
    frame = pandas.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])])
    if own is not None:  # whose columns may differ in type, which no array shows
        frame = with_plain_names(own).reset_index(drop=True)
        if twice := sorted({"label", "site", "time", "event"} & {*frame.columns}):
            what = f"a column of X is called {twice[0]!r}, as the arrays beside it are."
            raise UnseenError(what, remedy="Name it otherwise, or pass one data frame.")
    if (pair := _times_of(y)) is not None:
        return frame.assign(time=pair[0], event=pair[1], site=sites), "site", "time", "event"
    return frame.assign(label=y, site=sites), "site", "label", None


def _times_of(y: Any) -> tuple[Any, Any] | None:
    """The times and events of labels [N, 2], or of records of the two; None for other labels."""
    if y.dtype.names is not None and len(y.dtype.names) == 2:
        event, time = sorted(y.dtype.names, key=lambda name: y.dtype[name].kind != "b")
        return y[time], y[event].astype("int8")
    if y.ndim != 2:
        return None
    if y.shape[1] != 2:
        raise UnseenError(
            f"y has the axis [N], or [N, 2] for times and events; found {list(y.shape)}."
        )
    return y[:, 0], y[:, 1]
