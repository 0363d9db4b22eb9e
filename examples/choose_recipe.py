"""Ask which recipe works at the next hospital, from one csv file.

python examples/choose_recipe.py [FOLDER]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
folder.mkdir(parents=True, exist_ok=True)

# visits.csv: one row per visit, one column for the hospital, one for what is predicted.
make_visits = Path(__file__).resolve().with_name("make_visits.py")
subprocess.run([sys.executable, make_visits], cwd=folder, check=True)

# Train every recipe without some of the hospitals, and try it there. A unit keeps the visits of
# one patient together. Leave recipes out to try all that fit a table.
command = ["choose", "visits.csv", "--site", "hospital", "--label", "died", "unit=patient"]
command += ["metric=auroc", "--recipes", "fedavg,glm", "--rates", "1", "--out", "choice"]
unseen = "from unseen.cli.main import main; main()"  # what the command `unseen` runs
subprocess.run([sys.executable, "-c", unseen, *command], cwd=folder, check=True)

# Train the recommended recipe at all hospitals. model/README.md says what to expect.
command = ["train", "--recipe", "choice/choice.json", "--out", "model"]
subprocess.run([sys.executable, "-c", unseen, *command], cwd=folder, check=True)
print(f"the answer and the model: {folder}")
