"""Measure speed and memory against others on the same work; every goal is met or not.

python benchmarks                       # everything, about twenty minutes on a quiet machine
python benchmarks rules memory --quick  # some of it, on less work: does it run at all?
"""

from __future__ import annotations

import argparse
from pathlib import Path

from report import bench, page


def main() -> None:
    """Run what is named, and write JSON and page where they are asked for."""
    parser = argparse.ArgumentParser("benchmarks", description=str(__doc__).split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="less work: does it run at all?")
    parser.add_argument("--out", type=Path, help="JSON of what was measured")
    parser.add_argument("--page", type=Path, help="write the page of --out here")
    asked = parser.parse_args()
    report, wrong = bench(asked.names, asked.quick, asked.out)
    if asked.page is not None:
        asked.page.write_text(page(report))
    if wrong:
        raise SystemExit(
            f"{', '.join(wrong)} failed, and the error stands above. Mend the script, then run "
            f"`python benchmarks {' '.join(wrong)}`; the other sections are kept in --out."
        )


if __name__ == "__main__":
    main()
