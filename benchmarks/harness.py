"""What the benchmarks share: interleaved timing, ratios with quartiles, peak memory, the machine.

A benchmark is a module here with `goals`, a list of `Goal`, and `run(quick) -> dict`:

    {"measured": [rows], "goals": {key: value}, "notes": [sentences]}

and, where it cannot run with the core alone, `extras`, the extras that it needs.

A row is a dictionary of texts and numbers: `what`, `way`, and what was measured. Rows with other
columns, or another `table`, make another table. `python benchmarks NAME` runs a module in a process
of its own and judges its goals; `python benchmarks/NAME.py [--quick]` prints what `run` returns.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: What is imported of each extra that a benchmark may need.
EXTRAS = {
    "dp": ("opacus",),
    "fast": ("numba",),
    "flower": ("flwr", "ray"),
    "he": ("tenseal", "cryptography"),
    "pandas": ("pandas",),
}
#: A goal's value may be a float, or a ratio [median, lower quartile, upper quartile].
Value = float | Sequence[float] | None


@dataclass(frozen=True)
class Goal:
    """What a number should be at least or at most; the median decides."""

    key: str
    text: str
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Ratio:
    """Median and quartiles of the ratios of the repetitions."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> Ratio:
        ratios = [a / max(b, 1e-9) for a, b in zip(above, below, strict=True)]
        if len(ratios) == 1:
            return cls(ratios[0], ratios[0], ratios[0])
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return cls(median, low, high)

    def list(self) -> list[float]:
        return [self.median, self.low, self.high]


@dataclass
class Timings:
    """Seconds of every repetition, by way: wall, and CPU with that of child processes."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, above: str, below: str, cpu: bool = False) -> Ratio:
        """How many times as long as `below` the way `above` takes."""
        found = self.cpu if cpu else self.wall
        return Ratio.of(found[above], found[below])

    def row(self, what: str, way: str, base: str | None = None, **more: object) -> dict[str, Any]:
        """A measured row: medians, and how many times as fast as `base` the way is."""
        row: dict[str, Any] = {
            "what": what,
            "way": way,
            "ms": 1000 * statistics.median(self.wall[way]),
            "cpu_ms": 1000 * statistics.median(self.cpu[way]),
        }
        if base is not None:
            row["ratio"] = self.ratio(base, way).list()
            row["cpu_ratio"] = self.ratio(base, way, cpu=True).list()
        return row | more

    def rows(self, what: str, base: str, **more: object) -> list[dict[str, Any]]:
        return [self.row(what, way, base, **more) for way in self.wall]


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def interleaved(
    ways: Mapping[str, Callable[[], object]], repeats: int = 7, warm: int = 1
) -> Timings:
    """Call every way in turn in this process, in an order reversed every second repetition."""
    for _ in range(warm):
        for call in ways.values():
            call()
    timings = Timings({name: [] for name in ways}, {name: [] for name in ways})
    names = list(ways)
    gc.collect()
    gc.freeze()  # what is here already need not be looked through before every call
    for repeat in range(repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            gc.collect()
            cpu, begun = cpu_seconds(), time.perf_counter()
            ways[name]()
            timings.wall[name].append(time.perf_counter() - begun)
            timings.cpu[name].append(cpu_seconds() - cpu)
    gc.unfreeze()
    return timings


def status(name: str) -> int:
    """A line of this process's status, in KiB (Linux)."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def forget_peak() -> None:
    """Let the process's peak memory begin again (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak(function: Callable[..., object], prepare: Callable[..., object], queue: Any) -> None:
    prepared = prepare()
    forget_peak()
    before = status("VmRSS")
    function(prepared)
    queue.put((status("VmHWM") - before) / 1024)


def peak_memory(function: Callable[..., object], prepare: Callable[..., object]) -> float:
    """MiB by which `function(prepare())` raises the peak of a fresh process above what `prepare`
    left. Both must be functions of a module, or partials of some."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_peak, args=(function, prepare, queue))
    process.start()
    try:
        return float(queue.get(timeout=600))
    finally:
        process.join()


def fresh(function: Callable[..., object], *arguments: object, threads: int = 1) -> Any:
    """The result of a module's function in a fresh process with this number of threads."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_called, args=(queue, threads, function, arguments))
    process.start()
    try:
        return queue.get(timeout=1200)
    finally:
        process.join()


def _called(queue: Any, threads: int, function: Callable[..., object], arguments: Any) -> None:
    import torch

    torch.set_num_threads(threads)
    queue.put(function(*arguments))


def processor(text: str) -> str:
    """Vendor and model of the processor, from what Linux says of it.

    >>> processor("vendor_id: GenuineIntel\\nmodel name: Intel(R) Xeon(R) Processor")
    'Intel Xeon Processor'
    """
    pairs = (line.partition(":") for line in text.splitlines())
    found = {name.strip(): value.strip() for name, _, value in pairs}
    plain = re.sub(r"\((R|TM)\)", "", found.get("model name", platform.machine()))
    model = " ".join(plain.split())
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(found.get("vendor_id", ""), "")
    return model if vendor in model else f"{vendor} {model}"


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and how busy it was."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": processor(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "vector_unit": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load": list(os.getloadavg()),
    }


def names() -> list[str]:
    """The benchmarks that there are, in the order of their page."""
    found = [p.stem for p in HERE.glob("*.py") if "\ngoals" in p.read_text()]
    first = ["start_up", "rules", "fedavg_round", "study_time", "step"]
    return [n for n in first if n in found] + sorted(n for n in found if n not in first)


def judged(goals: Sequence[Goal], values: Mapping[str, Value]) -> list[dict[str, Any]]:
    """Every goal with its value and whether it is met; None where nothing was measured."""
    found = []
    for goal in goals:
        value = values.get(goal.key)
        middle = value if value is None or isinstance(value, int | float) else value[0]
        met = None
        if middle is not None:
            met = (goal.at_least is None or middle >= goal.at_least) and (
                goal.at_most is None or middle <= goal.at_most
            )
        found.append({**asdict(goal), "value": value, "met": met})
    return found


def missing(extras: Sequence[str]) -> list[str]:
    """Those of the extras that are not installed."""
    return [e for e in extras if not all(map(importlib.util.find_spec, EXTRAS[e]))]


def measure(name: str, quick: bool) -> dict[str, Any]:
    """One benchmark's section, measured in this process."""
    sys.path.insert(0, str(HERE))
    module = importlib.import_module(name)
    begun, cpu, load = time.perf_counter(), cpu_seconds(), os.getloadavg()[0]
    absent = missing(getattr(module, "extras", ()))
    if absent:
        install = f'pip install "unseen[{",".join(absent)}]"'
        note = f"Not measured: this needs an extra that is not installed: {install}."
        found: dict[str, Any] = {"notes": [note]}
    else:
        found = module.run(quick)
    return {
        "name": name,
        "about": (module.__doc__ or name).strip().splitlines()[0],
        "measured": found.get("measured", []),
        "goals": judged(module.goals, {} if quick else found.get("goals", {})),
        "notes": found.get("notes", []),
        "quick": quick,
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": cpu_seconds() - cpu,
        "load": load,
    }


def in_process(name: str, quick: bool) -> dict[str, Any]:
    """One benchmark's section, measured in a fresh process; `failed` where that went wrong."""
    command = [sys.executable, str(HERE / "harness.py"), name, "--json"]
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        command + ["--quick"] * quick,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        section: dict[str, Any] = json.loads(lines[-1])
        return section
    note = f"**Failed** with exit status {done.returncode}: nothing was measured."
    empty: dict[str, Any] = {"measured": [], "goals": [], "notes": [note]}
    return {"name": name, "about": name, **empty, "quick": quick, "failed": True}


@functools.cache
def commit() -> str:
    """The commit measured, with a `+` for changes since."""
    done = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def main(file: str) -> None:
    """Run the benchmark in `file` by itself and print what it measured."""
    parser = argparse.ArgumentParser(description=Path(file).stem)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    from report import section_text

    print(section_text(measure(Path(file).stem, quick)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One benchmark, as JSON.")
    parser.add_argument("name")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sys.modules.setdefault("harness", sys.modules[__name__])
    print(json.dumps(measure(options.name, options.quick)))
