"""Compare methods at a site that took no part in training.

python examples/compare_methods.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import unseen

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())

# Six sites hold scikit-learn's digits, each at its own angle. Here 0 degrees, then 75 degrees, is
# left out of training and measured.
study = unseen.Study(
    dataset="rotated-digits",
    methods=["deepall", "fedavg", "fedavg+ga"],  # pooled rows, FedAvg, FedAvg with GA
    reference="fedavg",  # the others are tested against it
    targets=["0", "75"],
    seeds=2,
    rounds=5,
)
results = study.run(folder / "study")  # run it again: only what is missing is trained
print(results.table())
print(results.table("loss"))
print(f"for a page with figures: unseen report {folder / 'study'}")
