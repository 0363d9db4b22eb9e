"""Digests of what a fixed set of runs writes, to see that moving code changes no bit.

    python tools/digest.py before.json                      # run everything, write the digests
    python tools/digest.py after.json --against before.json # run it again, name what differs

The set: the digits study; a study over every channel, with noise and with a blind server; a
federation of four sites; train, predict and export; a report. Both runs belong on one machine:
processors differ in the last bits. About five minutes.

Left out of a digest is what no two runs share: seconds, memory, the commit and dates, the order of
a file's header; and the noise of encryption, so that of encrypted studies only the rounded tables
count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNSEEN = (sys.executable, "-c", "from unseen.cli.main import main; main()")
#: Lines of records that depend on the machine or on the clock.
VOLATILE = ("seconds", "peak_mib", "commit", "tensors", "fingerprint")
SMALL = ("rounds=3", "seeds=1", "targets=75", "model=mlp(widths=[8])")
NOISE = "dp(clip=1.0, noise=1.0, delta=1e-5, seed=3)"
#: name -> settings of a small digits study; encrypted figures hold to rounding only.
CHANNELS = {
    "masks": ("privacy.channel=masks()", "methods=fedavg,scaffold+ga"),
    "noise-on-examples": (f"privacy.examples={NOISE}", "methods=fedavg"),
    "noise-on-clients": (f"privacy.clients={NOISE}", "methods=fedavg,fedprox"),
    "ckks": ("privacy.channel=ckks(gram='exact')", "methods=ppdg"),
    "ckks-sketch": ("privacy.channel=ckks(gram='sketch(4096)')", "methods=ppdg"),
    "ckks-blind": ("privacy.channel=ckks()", "privacy.server=blind", "methods=fedavg+ga"),
}
FEDERATION = """
dataset = "table(path='visits.csv', domain='site', label='died')"
methods = ["ppdg+ga", "fedilc-inter", "scaffold"]
seeds = 1
rounds = 3
model = "mlp(widths=[8])"
on_bad_reply = "drop"
save = ["final"]
participation = 0.67
targets = ["west"]
[training]
batch_size = 8
[federation]
deadline = 60
patience = 0
minimum = 2
"""


def main() -> int:
    """Run the set and write its digests; 1 where they differ from those of another run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="", help="comma-separated names of parts")
    arguments = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "100"}
    parts = [part for part in PARTS if not arguments.only or part in arguments.only.split(",")]
    digests: dict[str, str] = {}
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="digest-") as folder:
            place = Path(folder)
            os.environ["UNSEEN_CACHE"] = str(place / "cache")
            print(part, flush=True)
            PARTS[part](place)
            digests |= {f"{part}/{name}": digest for name, digest in of_folder(place)}
        arguments.out.write_text(json.dumps(digests, indent=1) + "\n")
    if arguments.against is None:
        return 0
    before = {
        name: digest
        for name, digest in json.loads(arguments.against.read_text()).items()
        if name.split("/")[0] in parts
    }
    changed = sorted(n for n in {*before, *digests} if before.get(n) != digests.get(n))
    print(*(f"differs: {name}" for name in changed), sep="\n")
    print(f"{len(digests)} files, {len(changed)} differ")
    return 1 if changed else 0


def command(*arguments: str | Path, output: Path | None = None) -> None:
    """The command line as a user's; its output becomes a file of the set where one is named."""
    found = subprocess.run([*UNSEEN, *arguments], capture_output=True, text=True, cwd=ROOT)
    if found.returncode:
        raise SystemExit(f"unseen {' '.join(map(str, arguments))}\n{found.stdout}{found.stderr}")
    if output is not None:
        output.write_text(found.stdout)


def digits(folder: Path) -> None:
    """The default study and its table in four forms, and the report of it."""
    command("study", "digits", "--out", folder / "digits", "--jobs", "2")
    for form in ("text", "csv", "markdown", "latex"):
        command(
            "table",
            "digits",
            "--out",
            folder / "digits",
            "--format",
            form,
            output=folder / f"table.{form}",
        )
    command("report", folder / "digits", "--out", folder / "report.html")


def channels(folder: Path) -> None:
    """A small study over every channel."""
    for name, settings in CHANNELS.items():
        command("study", "digits", *SMALL, *settings, "--out", folder / name)


def kinds(folder: Path) -> None:
    """Methods of every kind of rule and gradient, and all that a study can record."""
    methods = (
        "fedavg,ppdg,pcgrad,feddg,csac(acquisition=2),scaffold,fednova,"
        "fedprox+ga,fedcurv,harmofl,copa,arfl,median,fedsam,gperxan"
    )
    recorded = ('record=["gram","gaps"]', 'save=["final","selected"]')
    command(
        "study", "digits", *SMALL, f"methods={methods}", "model=bn-cnn", *recorded,
        "--out", folder / "study",
    )  # fmt: skip
    command("report", folder / "study", "--out", folder / "report.html")


def visits(path: Path) -> None:
    """Patients of four sites: numbers with gaps, a category, two classes and a number to learn."""
    draw = random.Random(0)
    lines = ["site,age,dose,drug,died,score"]
    for k, site in enumerate(("north", "south", "east", "west")):
        for i in range(40 + k):
            age, dose = draw.gauss(60 + k, 8), draw.gauss(0, 1)
            died = "yes" if age + 8 * dose + draw.gauss(0, 1) > 60 + k else "no"
            gap = "" if i % 7 == 3 else f"{dose:.3f}"
            lines.append(f"{site},{age:.1f},{gap},{'abc'[i % 3]},{died},{age / 10 + dose:.3f}")
    path.write_text("\n".join(lines) + "\n")


def federation(folder: Path) -> None:
    """Four sites behind messages that are taken apart into bytes, in one process."""
    visits(folder / "visits.csv")
    (folder / "study.toml").write_text(FEDERATION)
    script = (
        "import sys; sys.path[:0] = ['tests']\n"
        "from pathlib import Path\n"
        "from support.hall import Hall, kits\n"
        "from unseen.sites.flower import server_run, site_messages\n"
        "site_messages.POLL, site_messages.LOOK = 0.005, 0.01\n"
        f"folder = Path({str(folder)!r})\n"
        "sites = dict.fromkeys(('north', 'south', 'east'), 'train') | {'west': 'evaluate'}\n"
        "hall = Hall(kits(folder, sites, folder))\n"
        "server_run.run(str(folder / 'study.toml'), str(folder / 'out'), hall, list(sites))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def serving(folder: Path) -> None:
    """A model of classes and one of numbers: trained, used, evaluated, exported."""
    visits(folder / "visits.csv")
    for label, other, task in (
        ("died", "score", "classification"),
        ("score", "died", "regression"),
    ):
        study = folder / f"{label}.toml"
        source = f"table(path='visits.csv', domain='site', label='{label}', task='{task}'"
        study.write_text(
            f'dataset = "{source}, drop=[\'{other}\'])"\nrounds = 3\nholdout = "west"\n'
            "[training]\nbatch_size = 8\n"
        )
        model, rows = folder / label, folder / "visits.csv"
        command("train", study, "--out", model, "--data-dir", folder)
        command("predict", model, rows, "--out", folder / f"{label}.csv")
        command("evaluate", model, "--data", rows, output=folder / f"{label}.txt")
        command("export", model, "--data-dir", folder, "--out", folder / f"{label}.onnx")


PARTS: dict[str, Callable[[Path], None]] = {
    "digits": digits,
    "channels": channels,
    "kinds": kinds,
    "federation": federation,
    "serving": serving,
}


def of_folder(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file below a folder that two runs share, with its digest."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name == ".lock" or re.match(r"cache/|kits/.*/state/", name):
            continue
        if re.match(r"ckks", name) and path.name != "table.csv":
            continue
        if path.stem in ("cost", "report"):  # seconds, and a page that shows them
            continue
        yield name, hashlib.sha256(stable(path, str(folder))).hexdigest()[:20]


def stable(path: Path, folder: str) -> bytes:
    """A file's content without what no two runs share."""
    content = path.read_bytes().replace(folder.encode(), b"FOLDER")
    if path.suffix == ".safetensors":
        return b"".join(of_tensors(path))
    if path.suffix == ".onnx":
        import onnx

        model = onnx.load(path)
        for part in (model, *model.graph.node, *model.graph.value_info):  # where they were made
            del part.metadata_props[:]
        return bytes(model.SerializeToString(deterministic=True))
    if path.name in ("done.json", "model.json"):
        found = json.loads(content)
        return json.dumps({k: v for k, v in found.items() if k not in VOLATILE}).encode()
    if path.name == "messages.jsonl":
        lines = map(json.loads, content.splitlines())
        kept = [{k: v for k, v in line.items() if k not in VOLATILE} for line in lines]
        return json.dumps(kept).encode()
    if re.match(r".*/ckks", str(path)):
        return re.sub(rb"(\d\.\d)\d+", rb"\1", content)
    if path.suffix in (".html", ".md", ".txt", ".json", ".tex"):
        content = re.sub(rb"\b[0-9a-f]{7,40}\b", b"HASH", content)
        content = re.sub(rb"\d{4}-\d\d-\d\d([T ][\d:.]+(Z|\+00:00)?)?", b"DATE", content)
        content = re.sub(rb"[\d.]+ (s|ms|min|MiB|seconds|minutes)\b", b"N", content)
    return content


def of_tensors(path: Path) -> Iterator[bytes]:
    """Names, notes and numbers of a file, whose header has an order of its own in every process."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        yield repr(sorted((file.metadata() or {}).items())).encode()
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            yield f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes()


if __name__ == "__main__":
    raise SystemExit(main())
