"""Train over three sites that exchange messages through Flower, on one machine.

    pip install ".[flower]"                            # in a checkout
    python examples/flower_sites.py [FOLDER]

Here Flower's simulation engine plays the sites in processes of this machine. The tutorial "Real
sites" (docs/tutorials/real-sites.md) runs them as processes with keys, TLS and approvals.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import unseen

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    make_visits = Path(__file__).resolve().with_name("make_visits.py")
    subprocess.run([sys.executable, make_visits], cwd=folder, check=True)

    # Flower and Ray send usage statistics unless they are told not to.
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    study = unseen.Study(
        dataset=f"table(path='{folder / 'visits.csv'}', site='hospital', label='died', "
        "unit='patient')",
        methods=["fedavg"],
        # Three hospitals train. The fourth takes no part and is measured.
        holdout={"source": ["north", "south", "west"], "target": ["east"]},
        metrics=["loss", "auroc"],
        validation=0.2,
        seeds=1,
        rounds=3,
    )
    results = study.run(folder / "study", backend="flower-simulation")
    print(results.table("auroc"))
