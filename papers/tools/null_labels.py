"""Two tables in which nothing can be learnt about sites: a check of comparisons and of the stack.

    python papers/tools/null_labels.py sites/communities.csv.gz WORK

`WORK/permuted.csv` has every site's labels in another order among its rows: no method can win.
`WORK/pooled.csv` has all rows dealt out anew to sites of the same sizes: sites do not differ, so
that a member cannot be better at some of them. docs/results/checks.md says what runs on them.
"""

import csv
import gzip
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

SITE, LABEL = "site", "label"
Row = dict[str, str]


def permuted(rows: Sequence[Row], draw: random.Random) -> list[Row]:
    """Return the rows with labels exchanged among those of one site."""
    labels: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        labels[row[SITE]].append(row[LABEL])
    for own in labels.values():
        draw.shuffle(own)
    return [row | {LABEL: labels[row[SITE]].pop()} for row in rows]


def pooled(rows: Sequence[Row], draw: random.Random) -> list[Row]:
    """Return the rows dealt out to sites of the same names and sizes."""
    sites = [row[SITE] for row in rows]
    draw.shuffle(sites)
    return [row | {SITE: site} for row, site in zip(rows, sites, strict=True)]


def main() -> None:
    """Write both tables."""
    source, work = Path(sys.argv[1]), Path(sys.argv[2])
    with gzip.open(source, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    work.mkdir(parents=True, exist_ok=True)
    for name, change in (("permuted", permuted), ("pooled", pooled)):
        with (work / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(change(rows, random.Random(name)))


if __name__ == "__main__":
    main()
