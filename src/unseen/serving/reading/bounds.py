"""What training's inputs were like, and which new inputs are far from that."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.serving.reading.batch import Batch, Item
from unseen.serving.reading.inputs import ImageInputs, Inputs, TableInputs

#: Deviations beyond which a value is flagged: 1 in 36 of any distribution at most (Chebyshev).
BOUND = 6.0
#: Added to what is about to become a logarithm: half a step of a byte.
STEP = 1 / 512
#: The least deviation of a logarithm, and of a brightness: images may all be of one size or grey.
LEAST, LEAST_BRIGHTNESS = 0.05, 1 / 255
#: Sides of an image's file; their range is exact, since it is of a device and not of a patient.
SIDES = ("width", "height")
#: Why no image is flagged.
UNKNOWN = (
    "this model's directory does not say what training's images were like. `unseen train` writes "
    "it, unless --no-ranges is given, where privacy.channel is clear and no noise was asked for."
)
CHANNELS = {1: ("",), 3: ("red ", "green ", "blue ")}


@dataclass(frozen=True)
class Quantity:
    """A number that every input has, and how it was distributed over training's inputs.

    Attributes:
        name: A column's name, or that of an image's statistic.
        mean: Over training's inputs.
        deviation: Over training's inputs; 0 where training had one value alone.
        low: No input of training was below; None where that did not leave the sites.
        high: No input of training was above; None where that did not leave the sites.
        log: Whether mean, deviation and range are those of the logarithm.
        public: Whether the range is the study's, so that mean and deviation follow from it.
    """

    name: str
    mean: float
    deviation: float
    low: float | None = None
    high: float | None = None
    log: bool = False
    public: bool = False

    @property
    def unit(self) -> float:
        """The deviation, or something small where it is 0."""
        return self.deviation or 1e-6 * max(1.0, abs(self.mean))

    @property
    def span(self) -> tuple[float, float]:
        """The lowest and the highest value that is not flagged, in deviations from the mean."""
        low = -BOUND if self.low is None else max(-BOUND, (self.low - self.mean) / self.unit)
        high = BOUND if self.high is None else min(BOUND, (self.high - self.mean) / self.unit)
        return (low, high) if self.deviation else (low / BOUND, high / BOUND)

    def describe(self, value: float, cell: str = "") -> str:
        """Return a flagged value in words: `145000 (z 8120; training 80 to 220)`.

        Args:
            value: The value, as the quantity has it.
            cell: The value as it is written in a csv file, if it is from one.
        """
        ends = ""
        if self.low is not None and self.high is not None:
            ends = f"{self._natural(self.low)} to {self._natural(self.high)}"
        if self.public and ends:
            why = f"range {ends}"
        elif not self.deviation or (self.low is not None and self.low == self.high):
            why = f"training always {self._natural(self.mean)}"
        else:
            why = f"z {_short((value - self.mean) / self.deviation)}"
            why += f"; training {ends}" if ends else ""
        return f"{cell or self._natural(value)} ({why})"

    def _natural(self, value: float) -> str:
        if self.log:
            value = round(math.exp(value) - (0.0 if self.name in SIDES else STEP), 5) + 0.0
        return _short(value)


@dataclass(frozen=True)
class Bounds:
    """What `predict` knows of training's inputs.

    Attributes:
        inputs: What the model takes.
        quantities: How its inputs were distributed; none where the directory holds none.
    """

    inputs: Inputs
    quantities: tuple[Quantity, ...]

    def mark(self, items: Sequence[Item], strict: bool = False) -> Batch:
        """Return a batch, or items as one, with what is far from training in it.

        Args:
            items: The batch.
            strict: Whether what is far from training gets an error and loses its input.
        """
        batch = items if isinstance(items, Batch) else Batch.of(items)
        if batch.x is None or not self.quantities:
            return batch
        ends = [(*q.span, q.mean, q.unit) for q in self.quantities]
        low, high, mean, unit = torch.tensor(ends, dtype=torch.float64).T
        values = self._values(batch.x, batch)
        z = (values - mean) / unit
        # Inputs are float32, so that an end of a range may come out a little beyond it.
        far = (z < low - 1e-5 * (1 + low.abs())) | (z > high + 1e-5 * (1 + high.abs()))
        unusual = dict[int, dict[str, str]]()
        for row in far.any(1).nonzero().flatten().tolist():
            place = int(batch.usable[row])
            cells = batch.cells(place)
            unusual[place] = {
                self.quantities[q].name: self.quantities[q].describe(
                    float(values[row, q]), cells.get(self.quantities[q].name, "").strip()
                )
                for q in far[row].nonzero().flatten().tolist()
            }
        marked = replace(batch, unusual=unusual)
        errors = {i: f"far from what training saw: {spelt(own)}" for i, own in unusual.items()}
        return marked.refused(errors) if strict else marked

    def _values(self, x: Tensor, batch: Batch) -> Tensor:
        """Return quantities [M, Q] of the inputs; the mean where a value is missing."""
        if isinstance(self.inputs, TableInputs):
            names = self.inputs.numeric
            columns = zip(names, x[:, : len(names)].double().T, strict=True)
            scaling = self.inputs.scaling
            values = {n: v * scaling[n][1] + (scaling[n][0] or 0.0) for n, v in columns}
        else:
            sizes = [batch.items[i].size or (1, 1) for i in batch.usable]
            sides = torch.tensor(sizes, dtype=torch.float64).log()
            values = measures(x) | dict(zip(SIDES, sides.T, strict=True))
        return torch.stack([values[q.name] for q in self.quantities], 1)


class Tally:
    """Counts inputs far from training, and what they are far in."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.read, self.far = bounds, 0, 0
        self.by: Counter[str] = Counter()

    def add(self, item: Item) -> None:
        self.count(Batch.of([item]))

    def count(self, batch: Batch, places: Collection[int] | None = None) -> None:
        """Count what of a batch is far from training; of some places, or of all."""
        own = batch.unusual.keys() if places is None else batch.unusual.keys() & {*places}
        read = {*batch.usable.tolist()} if places is None else {*places}
        self.read += len(read | own)
        self.far += len(own)
        for place in sorted(own):
            self.by.update(batch.unusual[place].keys())

    def lines(self) -> list[str]:
        """Return what to say of them at the end: nothing where all are as training's."""
        noun = "images" if isinstance(self.bounds.inputs, ImageInputs) else "rows"
        if not self.bounds.quantities and noun == "images":
            return [f"no image was checked for being far from training: {UNKNOWN}"]
        if not self.far:
            return []
        names = ", ".join(f"{name} ({count})" for name, count in self.by.most_common())
        what = "are" if noun == "images" else "hold values"
        return [f"{self.far} of {self.read} {noun} {what} far from what training saw: {names}"]


def spelt(unusual: Mapping[str, str]) -> str:
    """Return what is unusual in one item: `trestbps=145000 (z 8120); age=-5 (z -6.4)`."""
    return "; ".join(f"{name}={text}" for name, text in unusual.items())


def bounds_of(spec: Mapping[str, Any], inputs: Inputs) -> Bounds:
    """Return the bounds of a model's directory: of a table's columns or of images' statistics."""
    stored = spec.get("usual inputs") or {}
    if isinstance(inputs, ImageInputs):
        return Bounds(inputs, tuple(Quantity(**fields) for fields in stored.get("quantities", ())))
    if not isinstance(inputs, TableInputs):
        return Bounds(inputs, ())
    public = spec["study"]["privacy"].get("columns")
    ranges: Mapping[str, Sequence[float]] = public or stored.get("ranges") or {}
    quantities = []
    for name, (mean, deviation) in inputs.moments.items():
        low, high = ranges.get(name, (None, None))
        quantities.append(Quantity(name, mean, deviation, low, high, public=public is not None))
    return Bounds(inputs, tuple(quantities))


def outward(low: float, high: float, deviation: float) -> tuple[float, float]:
    """Round a range outward to multiples of the least 1, 2 or 5 · 10^k that is a deviation or more.

    So no end is the value of a single example.

    Example:
        >>> outward(29, 77, 9.1), outward(0.0, 6.2, 1.1), outward(-2.6, -0.3, 0.5)
        ((20.0, 80.0), (0.0, 8.0), (-3.0, 0.0))
    """
    exponent = math.floor(math.log10(deviation))
    steps = [m * 10.0**e for e in (exponent, exponent + 1) for m in (1, 2, 5)]
    step = next(s for s in steps if s >= deviation * (1 - 1e-9))
    digits = max(0, 1 - exponent)
    ends = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return round(ends[0], digits) + 0.0, round(ends[1], digits) + 0.0


def ranges_of(inputs: TableInputs, tables: Iterable[Tensor]) -> dict[str, tuple[float, float]]:
    """Return rounded ranges of the numeric columns.

    Args:
        inputs: What the model takes.
        tables: The sites' raw tables [N, C].
    """
    rows = torch.cat([table[:, inputs.schema.numeric].double() for table in tables])
    ranges = {}
    for name, column in zip(inputs.numeric, rows.T, strict=True):
        values, (_, deviation) = column[~column.isnan()], inputs.moments.get(name, (0.0, 0.0))
        if len(values) and deviation:
            ranges[name] = outward(float(values.min()), float(values.max()), deviation)
    return ranges


def measures(x: Tensor) -> dict[str, Tensor]:
    """Return brightness and contrast of each channel, detail and colour of images.

    Args:
        x: The images [N, C, S, S].

    Returns:
        Name -> values [N]. Brightness is the mean of the pixels, in [0, 1]. The others are
        logarithms: contrast of the pixels' deviation, detail of the mean difference of neighbours,
        colour of that of the channels.
    """
    pixels = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    names = CHANNELS.get(x.shape[1], tuple(f"channel {c} " for c in range(x.shape[1])))
    mean = pixels.mean((2, 3))
    deviation = (pixels - mean[:, :, None, None]).square().mean((2, 3)).sqrt()
    values = {f"{name}brightness": mean[:, c] for c, name in enumerate(names)}
    values |= {f"{name}contrast": (deviation[:, c] + STEP).log() for c, name in enumerate(names)}
    if min(x.shape[2:]) > 1:
        across, down = (pixels.diff(dim=d).abs().mean((1, 2, 3)) for d in (2, 3))
        values["detail"] = ((across + down) / 2 + STEP).log()
    if x.shape[1] > 1:
        spread = (pixels.amax(1) - pixels.amin(1)).mean((1, 2))
        values["colour"] = (spread + STEP).log()
    return {name: value.double() for name, value in values.items()}


def quantities_of(measured: Mapping[str, Tensor]) -> tuple[Quantity, ...]:
    """Return what is stored of the measures of training's images: moments, and rounded ranges."""
    quantities = []
    for name, values in measured.items():
        bright = name.endswith("brightness")
        deviation = max(float(values.std(correction=0)), LEAST_BRIGHTNESS if bright else LEAST)
        low, high = float(values.min()), float(values.max())
        if name not in SIDES:
            low, high = outward(low, high, deviation)
        quantities.append(Quantity(name, float(values.mean()), deviation, low, high, not bright))
    return tuple(quantities)


def check_strict(bounds: Bounds) -> None:
    """Refuse to be strict about images of which nothing is known; a table may have no numbers."""
    if not bounds.quantities and isinstance(bounds.inputs, ImageInputs):
        raise UnseenError(f"strict refuses inputs far from what training saw; {UNKNOWN}")


def _short(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return f"{rounded:.0f}" if rounded.is_integer() and abs(rounded) < 1e15 else f"{rounded:g}"
