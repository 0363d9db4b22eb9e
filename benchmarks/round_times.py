"""CPU time of a round of each method, on the data, model and recipe of a study.

    python benchmarks/round_times.py --data-dir DIR [--study csac/table1] [--repeats 5]
        [--methods "fedavg,feddg,csac(acquisition=1)"] [--targets M0,M75] [KEY=VALUE ...]

CSAC's Table 6 on PACS is a matter of time, so weights drawn at random do:

    python benchmarks/round_times.py --study csac/table3 --data-dir DIR --repeats 1
        --methods "fedavg,feddg,csac(acquisition=1, layers=['layer2', 'layer3', 'layer4'])"
        --targets photo,art_painting,cartoon,sketch "model=resnet18(head='csac', standardise=True)"
        weights= training.epochs=1

Every method plays one round for its first exchanges (CSAC's acquisition, FedDG's bank), which is
printed apart, and then `repeats` rounds, in turn with those of the other methods, in one process
and one thread. Ratios are to the first method, of medians. Evaluation is left out. Settings of the
study's file follow the options; a target each has its own lines.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from unseen.core.round import play_round
from unseen.studies.execution import Study
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.prepare import prepare
from unseen.studies.execution.runtime import Runtime
from unseen.studies.settings.named import parse_override, split_list


class Playing:
    """One method's federation, which goes on round by round."""

    def __init__(self, expression: str, planned, task, study: Study) -> None:
        self.study = study
        prepared = prepare(planned.data, task, study, 0)
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


def timed(planned, task, study: Study, repeats: int) -> None:
    """Print the times of every method's rounds at one target."""
    playing = {name: Playing(name, planned, task, study) for name in planned.methods}
    first = {name: one.round() for name, one in playing.items()}
    times: dict[str, list[float]] = {name: [] for name in playing}
    for _ in range(repeats):
        for name, one in playing.items():
            times[name].append(one.round())
    base = statistics.median(next(iter(times.values())))
    for name, found in times.items():
        median = statistics.median(found)
        ratios = sorted(t / base for t in found)
        print(
            f"{task.name}, {name}: {median:.2f} s a round ({min(found):.2f} to {max(found):.2f}), "
            f"{median / base:.2f} times {next(iter(times))} ({ratios[0]:.2f} to {ratios[-1]:.2f}); "
            f"round 0 {first[name]:.2f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the study")
    parser.add_argument("--data-dir")
    parser.add_argument("--study", default="csac/table1")
    parser.add_argument("--methods", default="fedavg,feddg,csac(acquisition=1)")
    parser.add_argument("--targets", help="the targets, comma-separated; the first one by default")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    changed = dict(map(parse_override, options.settings))
    changed |= {"methods": split_list(options.methods), "seeds": 1}
    if options.targets:
        changed["targets"] = split_list(options.targets)
    study = Study.read(options.study, changed)
    planned = prepare_study(study, Path("/nonexistent"), options.data_dir)
    for task in planned.tasks if options.targets else planned.tasks[:1]:
        timed(planned, task, study, options.repeats)


if __name__ == "__main__":
    main()
