"""What differential privacy of single examples costs in accuracy, on rotated digits.

    python benchmarks/noise.py [--quick]

The demo's study at several amounts of noise. The last round's model counts: a round chosen by
validation splits would use examples that no noise protects. ε is the largest of any client, for
one run; the table as a whole looked at the same data many times.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from harness import Goal, main

from unseen import Study
from unseen.core.record_lines import LEDGER, read_lines
from unseen.privacy.ledger import summary

#: Opacus accounts for ε.
extras = ("dp",)
#: Nothing is asked of it: the table is for the documentation.
goals: list[Goal] = []
CLIP, DELTA = 1.0, 1e-3
#: None: plain training. 0: gradients are clipped, and no noise is added.
NOISES = (None, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


def study(noise: float | None, quick: bool) -> Study:
    dp = "" if noise is None else f"dp(clip={CLIP}, noise={noise}, delta={DELTA})"
    return Study.read(
        "digits",
        {
            "methods": ("fedavg", "ppdg(lam=0.2)"),
            "targets": ("0",) if quick else ("0", "45", "75"),
            "seeds": 1 if quick else 3,
            "rounds": 3 if quick else 30,
            "selection": "last",
            "privacy": {"examples": dp},
        },
    )


def measured(noise: float | None, quick: bool) -> dict[str, Any]:
    """ε and the accuracies, in percent, over targets: mean and standard error over seeds."""
    asked = study(noise, quick)
    with tempfile.TemporaryDirectory() as folder:
        results = asked.run(folder, jobs=2)
        ledgers = [summary(read_lines(path)) for path in Path(folder).rglob(LEDGER)]
        ends = [(job, target[-1]["accuracy"]) for job, _, target in results.jobs()]
    promises = [p for ledger in ledgers for p in ledger.guarantees]
    spent = [p["prv"] for p in promises]
    epsilon = "∞" if not spent or None in spent else f"{max(spent):.3g}"
    name = {None: "plain training", 0.0: f"clip {CLIP:g}, no noise"}
    row = {"what": name.get(noise, f"clip {CLIP:g}, noise {noise}"), "way": f"ε = {epsilon}"}
    for method in asked.methods:
        found: dict[int, list[float]] = {}
        for job, accuracy in ends:
            if job.method == method:
                found.setdefault(job.seed, []).append(accuracy)
        means = [100 * statistics.mean(values) for values in found.values()]
        error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0
        row[method] = f"{statistics.mean(means):.1f} ± {error:.1f}"
    return row


def run(quick: bool) -> dict[str, Any]:
    rows = [measured(noise, quick) for noise in (NOISES[:3] if quick else NOISES)]
    notes = [
        "Average over the targets 0, 45 and 75 of the last round's accuracy in percent, mean ± "
        f"standard error over three seeds; δ = {DELTA:g}, ε by PRV, of one run."
    ]
    return {"measured": rows, "goals": {}, "notes": notes}


if __name__ == "__main__":
    main(__file__)
