"""Images with their true and their predicted masks, as a figure says them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Rows of pixels, each red, green and blue from 0 to 255.
Pixels = Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Picture:
    """One image.

    Attributes:
        name: What is written at its side.
        score: Its Dice coefficient.
        image, truth, guess: What was seen, what is there, what was predicted.
    """

    name: str
    score: float
    image: Pixels
    truth: Pixels
    guess: Pixels


@dataclass(frozen=True)
class Pictures:
    """A panel of a few images, each with its true and its predicted mask.

    Attributes:
        classes: Name and colour of each class of foreground.
    """

    title: str
    rows: tuple[Picture, ...]
    classes: tuple[tuple[str, tuple[int, ...]], ...]

    def words(self) -> str:
        parts = [f"{row.name} (Dice {row.score:.3f})" for row in self.rows]
        return f"{self.title}: image, truth and prediction; {', '.join(parts)}"

    def points(self) -> Iterator[Sequence[object]]:
        for row in self.rows:
            yield row.name, "dice", row.score
