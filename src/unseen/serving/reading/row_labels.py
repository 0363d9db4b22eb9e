"""The labels and the sites of rows of a file, as a model knows them."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from unseen.data.tables.cells import Cells, identity
from unseen.data.tables.events import flag_of
from unseen.data.tables.sheet import codes_of
from unseen.errors import nearest
from unseen.serving.reading.batch import Batch
from unseen.serving.reading.inputs import TableInputs

#: What sites are called, and the code of each row's.
Sites = tuple[tuple[str, ...], NDArray[np.int64]]


@dataclass(frozen=True)
class Labels:
    """The labels of a batch.

    Attributes:
        values: Codes of classes or numbers [N], or times and events [N, 2].
        faults: Place -> why it has none.
        left: Which rows are left out, as in training [N].
    """

    values: NDArray[np.float64]
    faults: Mapping[int, str] = field(default_factory=dict)
    left: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class LabelColumns:
    """Where the labels of rows are.

    Attributes:
        label: The column of the label, or of the time.
        event: That of the event, of times.
        classes: The model's classes, None for numbers and times.
        drop: Whether rows without a label are left out.
        place: What errors call the file.
    """

    label: str
    event: str
    classes: tuple[str, ...] | None
    drop: bool
    place: str

    def read(self, inputs: TableInputs, batch: Batch) -> Labels:
        """Return the labels of a batch of rows; refuse a file without their columns."""
        for name, what in ((self.label, "label"), (self.event, "label TIME,EVENT")):
            if name and name not in batch.columns and len(batch.errors) < len(batch):
                raise nearest(f"column of {self.place} (for {what})", name, batch.columns)
        if self.label not in batch.columns:
            return Labels(np.zeros(len(batch)))
        cells = replace(batch.columns[self.label].cells, decimal=inputs.dialect.decimal)
        missing = cells.without(inputs.missing).missing
        missing[[*batch.bare]] = False
        left = missing if self.drop else np.zeros_like(missing)
        if self.event:
            return self._times(inputs, batch, cells, left)
        values = self._codes(cells) if self.classes is not None else cells.values
        of_rows = np.append(values, np.nan)[cells.codes]
        kind = (
            "a finite number" if self.classes is None else f"a class of the model: {self.classes}"
        )
        faults = {i: f"its label {self.label} is missing" for i in np.flatnonzero(missing).tolist()}
        for i in np.flatnonzero(~missing & ~np.isfinite(of_rows)).tolist():
            faults[i] = f"its label {self.label} = {cells[i] or ''!r} is not {kind}"
        return Labels(of_rows, faults, left)

    def _codes(self, cells: Cells) -> NDArray[np.float64]:
        """Return the code of each text, NaN of what is no class."""
        codes = codes_of(self.classes or ())
        return np.array([codes.get(identity(text), np.nan) for text in cells.plain], dtype=float)

    def _times(
        self, inputs: TableInputs, batch: Batch, cells: Cells, left: NDArray[np.bool_]
    ) -> Labels:
        events = replace(batch.columns[self.event].cells, decimal=inputs.dialect.decimal)
        flags = np.array([flag_of(text) for text in events.plain], dtype=float)
        pairs = ((cells, cells.values), (events, flags))
        values = np.stack([np.append(own, np.nan)[c.codes] for c, own in pairs], axis=1)
        sound = np.isfinite(values).all(1) & (values[:, 0] >= 0)
        faults = {i: self._fault(inputs, batch, i) for i in np.flatnonzero(~sound).tolist()}
        return Labels(values, faults, left)

    def _fault(self, inputs: TableInputs, batch: Batch, place: int) -> str:
        cells = {name: batch.columns[name][place] for name in (self.label, self.event)}
        for column, cell in cells.items():
            if inputs.is_missing(cell):
                return f"its label {column} is missing"
        spelt = " and ".join(f"{column} = {cell!r}" for column, cell in cells.items())
        return f"{spelt} are not a time ≥ 0 with an event of 0 or 1"


def sites_of(
    inputs: TableInputs,
    batch: Batch,
    column: str,
    other: str,
    spellings: MutableMapping[object, str],
) -> Sites:
    """Return the site of each row, by the name that is known of an equal one: 3.0 is the site 3.

    Args:
        inputs: What the model takes.
        batch: The rows.
        column: That of sites; "" for none.
        other: The site of rows that name none.
        spellings: The `identity` of sites -> their names; other sites are added to it.
    """
    if not column or column not in batch.columns:
        return (other,), np.zeros(len(batch), dtype=np.int64)
    cells = batch.columns[column].cells
    texts = [text or other for text in cells.texts] + [other] * bool(cells.missing.any())
    names = [spellings.setdefault(inputs.identity(text), text) for text in texts]
    every = tuple(dict.fromkeys(names))
    places = np.array([every.index(name) for name in names], dtype=np.int64)
    return every, places[cells.codes]
