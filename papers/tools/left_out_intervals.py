"""How often the interval of `unseen choose` holds a left-out site's figure.

    python papers/tools/left_out_intervals.py NAME=choices/NAME/choice.json ...   # a Markdown table

For every recipe of every answer, each group of sites in turn: the interval that the other groups'
figures give, and whether each figure of the group lies inside.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unseen.studies.choice.expectation import LEVEL, expect


def inside(choice: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield every recipe and left-out site: whether the other groups' interval holds it."""
    for recipe, figures in choice["figures"].items():
        for group in choice["groups"].values():
            rest = [figure for site, figure in figures.items() if site not in group]
            if len(rest) < 2:
                continue
            interval = expect(rest)
            for site in group:
                if site in figures:
                    yield recipe, interval.low <= figures[site] <= interval.high


def main() -> None:
    """Print the table."""
    print(f"| set | sites | recipes | inside {LEVEL:.0%} intervals |\n|:--|--:|--:|--:|")
    held = total = 0
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        choice = json.loads(Path(path).read_text("utf-8"))
        found = [is_inside for _, is_inside in inside(choice)]
        sites = sum(map(len, choice["groups"].values()))
        print(f"| {name} | {sites} | {len(choice['figures'])} | {sum(found)} of {len(found)}, "
              f"{sum(found) / len(found):.0%} |")  # fmt: skip
        held, total = held + sum(found), total + len(found)
    print(f"| all | | | {held} of {total}, {held / max(1, total):.0%} |")


if __name__ == "__main__":
    main()
