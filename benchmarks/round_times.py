"""CPU time of a round of each method, on the data, model and recipe of a study.

    python benchmarks/round_times.py --data-dir DIR [--study csac/table1] [--repeats 5]
        [--methods "fedavg,feddg,csac(acquisition=1)"]

Every method plays one round for its first exchanges (CSAC's acquisition, FedDG's bank), which is
printed apart, and then `repeats` rounds, in turn with those of the other methods, in one process
and one thread. Ratios are to the first method, of medians. Evaluation is left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from unseen.core.round import play_round
from unseen.spec.named import split_list
from unseen.study import Study
from unseen.study.plan import prepare_study
from unseen.study.prepare import prepare
from unseen.study.runtime import Runtime


class Playing:
    """One method's federation, which goes on round by round."""

    def __init__(self, expression: str, planned, study: Study) -> None:
        self.study = study
        prepared = prepare(planned.data, planned.tasks[0], study, 0)
        runtime = Runtime.of(
            planned.setting, planned.data, prepared, expression, 0, evaluates=False
        )
        self.method, self.names = runtime.method, runtime.names
        self.backend, self.state = runtime.in_process(), runtime.start()

    def round(self) -> float:
        begun = time.process_time()
        self.state, _ = play_round(
            self.method, self.state, self.backend, self.names, self.study.rounds
        )
        return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--study", default="csac/table1")
    parser.add_argument("--methods", default="fedavg,feddg,csac(acquisition=1)")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = split_list(options.methods)
    study = Study.read(options.study, {"methods": names, "seeds": 1})
    planned = prepare_study(study, Path("/nonexistent"), options.data_dir)
    playing = {name: Playing(name, planned, study) for name in planned.methods}
    first = {name: one.round() for name, one in playing.items()}
    times: dict[str, list[float]] = {name: [] for name in playing}
    for _ in range(options.repeats):
        for name, one in playing.items():
            times[name].append(one.round())
    base = statistics.median(next(iter(times.values())))
    for name, found in times.items():
        median = statistics.median(found)
        ratios = sorted(t / base for t in found)
        print(
            f"{name}: {median:.2f} s a round ({min(found):.2f} to {max(found):.2f}), "
            f"{median / base:.2f} times {next(iter(times))} ({ratios[0]:.2f} to {ratios[-1]:.2f}); "
            f"round 0 {first[name]:.2f} s"
        )


if __name__ == "__main__":
    main()
