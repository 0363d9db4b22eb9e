"""A data frame or arrays as a data set: written once, by digest, as the file that jobs read."""

import hashlib
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from unseen.core.atomic import write_atomically
from unseen.data.tables.identifiers import check_almost, check_identifiers
from unseen.data.tables.parquet_rows import cells_of_column, plain_cell
from unseen.data.tables.sheet import Sheet, with_usual
from unseen.errors import UnseenError, nearest
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


def is_frame(data: Any) -> bool:
    """Return whether these are rows of pandas, polars or whatever else hands over Arrow's."""
    return _is_pandas(data) or hasattr(data, "__arrow_c_stream__")


def arrow_of(data: Any) -> Any:
    """Return a data frame, or a mapping of columns to arrays [N], as a table of Arrow.

    The columns' names are texts, without the blanks around them.

    Example:
        >>> arrow_of({" age": [61, None], "sex": ["f", "m"]}).to_pydict()
        {'age': [61, None], 'sex': ['f', 'm']}
    """
    if _is_pandas(data) or isinstance(data, Mapping):
        names, columns = zip(*data.items(), strict=True) if len([*data.keys()]) else ((), ())
        arrays = [_column(column) for column in columns]
    else:
        table = pyarrow.table(data)
        names, arrays = tuple(table.column_names), table.columns
    return pyarrow.table(arrays, names=[str(name).strip() for name in names])


def _is_pandas(data: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _column(column: Any) -> Any:
    """Return an array or a column of pandas as Arrow has it; of several types as texts."""
    if hasattr(column, "sparse"):
        column = column.sparse.to_dense()
    if isinstance(column, list | tuple):
        column = np.asarray(column, dtype=object)
    try:
        return pyarrow.array(column, from_pandas=True)
    except (pyarrow.ArrowException, UnicodeEncodeError, TypeError):
        if np.ndim(column) != 1:
            raise
        texts = (plain_cell(cell).encode("utf-8", "replace").decode() for cell in column)
        return pyarrow.array([cell or None for cell in texts], pyarrow.string())


def parquet_of(table: Any) -> bytes:
    """Return a table of Arrow as a Parquet file."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(table.replace_schema_metadata(None), file)
    return file.getvalue()


def expression_of(frame: Any, domain: str | None, label: str | None, **options: Any) -> str:
    """Return the data set's expression for a data frame or arrays.

    The rows are written to a Parquet file in the user's cache (`$XDG_CACHE_HOME/unseen/frames`),
    which nobody else may read: jobs run in processes of their own, and a study that is run again
    must find the same data. The file's name is its digest.

    Args:
        frame: A data frame of pandas or polars, or a table of Arrow; or (X [N, F], y [N], sites
            [N]), where y [N, 2] is a time and an event, as is an array of records of a boolean and
            a number; or a mapping of columns to arrays [N].
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
    if isinstance(frame, tuple | list):
        frame, domain, label, event = _of_arrays(frame)
        options |= {"event": event} if event is not None else {}
    if not isinstance(frame, Mapping) and not is_frame(frame):
        raise UnseenError(
            "dataset must be an expression, a data frame or arrays (X, y, sites); found "
            f"{type(frame).__name__}."
        )
    try:
        table = arrow_of(frame)
    except (pyarrow.ArrowException, TypeError) as error:
        raise UnseenError(f"dataset must have a column [N] for each name: {error}.") from None
    roles = {"domain": domain, "label": label}
    roles |= {"event": options["event"]} if "event" in options else {}
    for role, column in roles.items():
        if column is None:
            raise UnseenError(f"dataset: a data frame needs {role}=COLUMN.")
        roles[role] = name = str(column).strip()
        if name not in table.column_names:
            raise nearest(f"column (for {role})", name, table.column_names)
    domain, label = roles.pop("domain"), roles.pop("label")
    options |= roles
    _check_shape(table)
    options = {key: _several(key, value) for key, value in options.items()}
    options["categorical"] = categorical_of(table, {domain, label}, options)
    if not {"task", "event"} & options.keys() and _is_float(table.column(str(label)).type):
        whole = np.mod(table.column(str(label)).drop_null().to_numpy(), 1) == 0
        options["task"] = "classification" if whole.all() else "regression"
    call = Call(
        "table", {"path": str(_file_of(table)), "domain": domain, "label": label, **options}
    )
    return text((call,))


def _file_of(table: Any) -> Path:
    """Write a table to the user's cache, unless it is there, and return its file."""
    digest = hashlib.sha256(repr(table.schema.remove_metadata()).encode())
    for batch in table.replace_schema_metadata(None).combine_chunks().to_batches():
        digest.update(batch.serialize())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unseen" / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{digest.hexdigest()[:16]}.parquet"
    if not path.exists():
        write_atomically(path, parquet_of(table))
        path.chmod(0o600)
    return path


def as_frame(sheet: Sheet, path: Path) -> Sheet:
    """Return a sheet as errors name it, if its file is one that `expression_of` wrote."""
    if path.parts[-3:-1] != ("unseen", FOLDER):
        return sheet
    return replace(sheet, name=NAME, lines=range(len(sheet.lines)), place=PLACE)


def _check_shape(table: Any) -> None:
    names = table.column_names
    if not len(table):
        raise UnseenError(f"{NAME} has no rows.")
    if "" in names:
        raise UnseenError(
            f"{NAME} has no name for column {names.index('')} (counted from 0).",
            remedy="Name it, as by rename(columns={'': NAME}), or drop it.",
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UnseenError(
            f"{NAME} has more than one column called {twice[0]!r}:",
            remedy="rename or remove all but one.",
        )


def _several(key: str, value: Any) -> Any:
    """A lone name as a list of one; all else as it is, so that a study that is run again is it."""
    several = ("groups", "drop", "text", "missing", "categorical", "without")
    return [value] if key in several and isinstance(value, str) else value


def categorical_of(table: Any, others: set[str | None], options: Mapping[str, Any]) -> list[str]:
    """The features that the frame calls categories, or words alone, and those named so.

    Of texts among which there are numbers the table decides, as it does of a csv file's: a word at
    one site must not turn the numbers of all others into categories.
    """
    kinds = pyarrow.types
    several = [name for key in ("groups", "drop", "text") for name in options.get(key) or ()]
    apart = {*others, options.get("event"), options.get("unit"), *several}
    features = {f.name: f.type for f in table.schema if f.name not in apart}
    if odd := [name for name, kind in features.items() if kinds.is_temporal(kind)]:
        raise UnseenError(
            f"column {odd[0]!r} holds timestamps, which tables do not support.",
            remedy=f"Make a number of it, such as days since a date, or write drop={odd!r}.",
        )
    words = [name for name, kind in features.items() if not _is_number(kind)]
    named = options.get("categorical") or []
    sheet = _sheet(table, words, with_usual(options.get("missing") or ()))
    if options.get("identifiers") != "keep":
        check_identifiers(sheet, [name for name in words if name not in named])
    coded = [name for name in words if kinds.is_dictionary(features[name])]
    own = [n for n in words if n in coded or not sheet.column(n).are_numbers.any()]
    for name in own:
        if name not in [*coded, *named] and sheet.column(name).present:
            check_almost(sheet, name)
    return [*own, *(name for name in named if name not in own)]


def _is_float(kind: Any) -> bool:
    return bool(pyarrow.types.is_floating(kind))


def _is_number(kind: Any) -> bool:
    kinds = pyarrow.types
    numbers = (kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal)
    return any(is_kind(kind) for is_kind in numbers)


def _sheet(table: Any, names: Iterable[str], missing: Sequence[str]) -> Sheet:
    columns = {n: cells_of_column(NAME, n, table.column(n)).without(missing) for n in names}
    return Sheet(NAME, columns, range(len(table)), place=PLACE)


def _of_arrays(arrays: Sequence[Any]) -> tuple[dict[str, Any], str, str, str | None]:
    if len(arrays) != 3:
        raise UnseenError(f"dataset: arrays are three, (X, y, sites); found {len(arrays)}.")
    x, y, sites = arrays[0], *(np.asarray(array) for array in arrays[1:])
    if is_frame(x):  # whose columns may differ in type, which no array shows
        table = arrow_of(x)
        columns, shape = dict(zip(table.column_names, table.columns, strict=True)), table.shape
        if twice := sorted({"label", "site", "time", "event"} & {*columns}):
            what = f"a column of X is called {twice[0]!r}, as the arrays beside it are."
            raise UnseenError(what, remedy="Name it otherwise, or pass one data frame.")
        if len(columns) < shape[1]:
            _check_shape(table)
    else:
        x = np.asarray(x)
        shape, columns = x.shape, {}
        if x.ndim == 2:
            columns = {f"x{j}": x[:, j] for j in range(x.shape[1])}
    if len(shape) != 2:
        raise UnseenError(
            f"X has the axes [N, F]; found {list(shape)}.",
            remedy="Images are folders SITE/CLASS/image.png, or a function module:name.",
        )
    if len({shape[0], len(y), len(sites)}) > 1:
        raise UnseenError(f"X, y and sites differ in length: {shape[0]}, {len(y)}, {len(sites)}.")
    if (pair := _times_of(y)) is not None:
        columns |= {"time": pair[0], "event": pair[1], "site": sites}
        return columns, "site", "time", "event"
    return {**columns, "label": y, "site": sites}, "site", "label", None


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
