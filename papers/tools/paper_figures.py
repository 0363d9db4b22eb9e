"""Draw figures of the papers from records: losses beside the printed ones, and losses by round.

    python papers/tools/paper_figures.py losses docs/results/fedilc-figure3.svg \\
        fedilc-color-mnist fedilc-rotated-cifar10
    python papers/tools/paper_figures.py curves docs/results/fedilc-color-mnist RUN

`losses` reads packed records below docs/results, of entries of coverage.toml that name FedILC's
Table 2, and draws ours beside the printed figures, which is its Figure 3. `curves` reads the whole
folder of a run, which packed records do not have, and writes curves.csv and curves.svg: the
clients' training loss, the loss on the sources' validation splits and that on the target, means
over clients and seeds.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exhibits import RESULTS, Reader, read
from verdicts import Archive

from unseen.core import record_lines
from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError
from unseen.studies.results.statistics import mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE = "fedilc/table2/"
PARTS = ("training", "validation", "target")
#: (method, round) -> part -> one loss per client and seed.
Losses = Mapping[tuple[str, int], Mapping[str, Sequence[float]]]


def beside(folders: Sequence[str], results: Path = RESULTS) -> Figure:
    """Return a panel for each folder: our losses and the printed ones, with their ±."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(folders), figsize=(5.5 * len(folders), 3), squeeze=False)
    with tempfile.TemporaryDirectory() as scratch:
        reader = Reader(Archive(results, Path(scratch)))
        for folder, axis in zip(folders, axes[0], strict=True):
            ran, part = _entry(folder, results)
            found = list(reader.lines(ran, part))
            for name, shift, mark in (("here", -0.15, "o"), ("printed", 0.15, "s")):
                texts = [line.ours[0] if name == "here" else line.theirs[0] for line in found]
                pairs = [text.partition(" ± ")[::2] for text in texts]
                axis.errorbar(
                    [float(value) for value, _ in pairs],
                    [i + shift for i in range(len(found))],
                    xerr=[float(error or 0) for _, error in pairs],
                    fmt=mark,
                    label=name,
                )
            axis.set_yticks(range(len(found)), [line.label for line in found])
            axis.set_ylim(len(found) - 0.5, -0.5)
            axis.set_title(part.removeprefix(TABLE), fontsize="medium")
            axis.set_xlabel("loss on the target")
            axis.grid(axis="x", alpha=0.3)
        axes[0][0].legend(fontsize="small", loc="center right")
    return figure


def _entry(folder: str, results: Path) -> tuple[Any, str]:
    """Return the entry of coverage.toml on a folder's losses, and the part of the table."""
    for ran in read(results / "coverage.toml"):
        for part in ran.exhibits:
            if ran.folder == folder and part.startswith(TABLE):
                return ran, part
    raise UnseenError(f"coverage.toml has no entry of {TABLE} with the folder {folder!r}.")


def losses(run: Path) -> Losses:
    """Return every loss of a run's finished jobs."""
    found: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for mark in sorted(run.glob("records/*/*/seed-*/done.json")):
        place = mark.parent
        evaluations = [*record_lines.read_lines(place / "source.jsonl")]
        evaluations += record_lines.read_lines(place / "target.jsonl")
        method = evaluations[0]["method"]
        for row in evaluations:
            part = "target" if row["role"] == "target" else "validation"
            found[method, row["round"]][part].append(row["loss"])
        for row in record_lines.read_lines(place / "rounds.jsonl"):
            found[method, row["round"]]["training"] += row["scalars"].get("loss", ())
    if not found:
        raise UnseenError(f"{run} has no finished job.", remedy="Name the folder of a run.")
    return found


def curves(found: Losses) -> tuple[str, Figure]:
    """Return the means as csv, and a panel for each part."""
    import matplotlib.pyplot as plt

    text, methods = io.StringIO(), list(dict.fromkeys(method for method, _ in found))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "round", *PARTS])
    for (method, round_), parts in sorted(found.items()):
        values = [f"{mean(list(parts[p])):.5g}" if p in parts else "" for p in PARTS]
        writer.writerow([method, round_ + 1, *values])
    figure, axes = plt.subplots(1, len(PARTS), figsize=(11, 3), sharex=True)
    for part, axis in zip(PARTS, axes, strict=True):
        for method in methods:
            points = sorted((r, mean(list(p[part]))) for (m, r), p in found.items()
                            if m == method and part in p)  # fmt: skip
            axis.plot([r + 1 for r, _ in points], [v for _, v in points], label=method)
        axis.set_title(f"{part} loss", fontsize="medium")
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="x-small")
    return text.getvalue(), figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as svg, the same bytes each time."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "unseen"
    figure.tight_layout()
    with io.BytesIO() as content:
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
        write_atomically(path, content.getvalue())


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("losses", "curves"))
    parser.add_argument("out", type=Path, help="the svg of losses; the folder of curves")
    parser.add_argument("records", nargs="+", help="folders below docs/results; a run's folder")
    asked = parser.parse_args(arguments)
    try:
        if asked.kind == "losses":
            save(beside(asked.records), asked.out)
        else:
            text, figure = curves(losses(Path(asked.records[0])))
            write_atomically(asked.out / "curves.csv", text.encode())
            save(figure, asked.out / "curves.svg")
    except UnseenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
