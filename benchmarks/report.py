"""Run benchmarks, judge their goals, write them down as a page."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness

from unseen.errors import nearest

SIGNS = {True: "met", False: "**not met**", None: "not measured"}
Section = Mapping[str, Any]


def bench(
    names: Sequence[str], quick: bool = False, out: Path | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Run benchmarks, each in a process of its own: all of them, or those named.

    out: a JSON file to write after each one. This machine's record changes there, and in it the
    sections that are run; a quick one stays only until one is measured.

    Returns:
        What `out` holds: `machines`, the one measured last first; and the names of the benchmarks
        that ended in an error.
    """
    known = harness.names()
    for name in names:
        if name not in known:
            raise nearest("benchmark", name, known)
    report: dict[str, Any] = {"machines": {}}
    if out is not None and out.exists():
        report = json.loads(out.read_text())
    wrong = []
    for name in names or known:
        print(f"{name} ...", file=sys.stderr, flush=True)
        section = harness.in_process(name, quick)
        section |= {"commit": harness.commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
        print(section_text(section), flush=True)
        wrong += [name] if section.get("failed") else []
        machine = harness.machine()
        report["machines"] = recorded(report["machines"], machine, section)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(summary(report["machines"])))
    return report, wrong


def title(machine: Mapping[str, Any]) -> str:
    """Return the key of a machine's record: processor, cores, and a GPU where there is one.

    >>> title({"processor": "AMD EPYC", "cores": 2, "gpu": None})
    'AMD EPYC, 2 cores'
    """
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    return f"{machine['processor']}, {machine['cores']} cores{gpu}"


def recorded(
    machines: Mapping[str, Any], machine: Mapping[str, Any], section: Section
) -> dict[str, Any]:
    """The machines' records with a section that was run on this machine."""
    key = title(machine)
    before = machines.get(key, {"sections": {}})
    sections, name, quick = before["sections"], section["name"], section.get("quick", False)
    there = sections.get(name)
    if quick and there is not None and not there.get("quick"):
        return dict(machines)
    here = {
        "machine": machine if not quick or "machine" not in before else before["machine"],
        "commit": section["commit"] if not quick else before.get("commit"),
        "date": section["date"] if not quick else before.get("date"),
        "sections": {**sections, name: section},
    }
    others = {k: v for k, v in machines.items() if k != key}
    return {**machines, key: here} if quick else {key: here, **others}


def shown(record: Mapping[str, Any]) -> list[Section]:
    """The sections of a record whose benchmarks still exist, in the order of the page."""
    return [record["sections"][n] for n in harness.names() if n in record["sections"]]


def summary(machines: Mapping[str, Any]) -> list[str]:
    """How many goals each machine meets, at which commit, and a table of all goals."""
    lines = [f"- {counted(key, record)}" for key, record in machines.items()]
    return [*lines, "", *compared(machines)]


def counted(key: str, record: Mapping[str, Any]) -> str:
    """A line on a machine: goals met and not, commit and date, sections of other commits."""
    signs = [goal["met"] for section in shown(record) for goal in section["goals"]]
    words = {True: "goals met", False: "not met", None: "not measured"}
    counts = ", ".join(f"{signs.count(met)} {text}" for met, text in words.items())
    line = f"**{key}: {counts}**"
    if record["commit"] is None:
        return f"{line}; quick runs alone, nothing was measured."
    line += f", at commit {record['commit']} on {record['date']}."
    old: dict[str, list[str]] = {}
    for section in shown(record):
        if section["commit"] != record["commit"] and not section.get("quick"):
            old.setdefault(f"{section['commit']} ({section['date']})", []).append(section["name"])
    parts = [f"{', '.join(names)} at {commit}" for commit, names in old.items()]
    return line + (f" **Sections of other commits:** {'; '.join(parts)}." if parts else "")


def compared(machines: Mapping[str, Any]) -> list[str]:
    """A Markdown table of all goals with a column per machine.

    A goal that asks for something else at another commit has a row of its own; a dash says that the
    machine's record has no such goal.
    """
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for name in harness.names():
        for key, record in machines.items():
            for goal in record["sections"].get(name, {}).get("goals", []):
                found = f"{number(goal['value'])}, " if goal["value"] is not None else ""
                cells.setdefault((goal["text"], asked(goal)), {})[key] = found + SIGNS[goal["met"]]
    if not cells:
        return []
    lines = [f"| goal | asked | {' | '.join(machines)} |", "|:--|--:|" + ":--|" * len(machines)]
    for (text, bound), row in cells.items():
        lines.append(f"| {text} | {bound} | {' | '.join(row.get(key, '–') for key in machines)} |")
    return lines


def asked(goal: Mapping[str, Any]) -> str:
    """The bound of a goal."""
    least = f"≥ {goal['at_least']:g}" if goal["at_least"] is not None else ""
    return least + (f"≤ {goal['at_most']:g}" if goal["at_most"] is not None else "")


def goal_lines(goals: Sequence[Mapping[str, Any]]) -> list[str]:
    """A Markdown table of goals, each marked met or not."""
    if not goals:
        return []
    lines = ["| goal | asked | measured | |", "|:--|--:|--:|:--|"]
    for goal in goals:
        found = f"{number(goal['value'])} | {SIGNS[goal['met']]}"
        lines.append(f"| {goal['text']} | {asked(goal)} | {found} |")
    return lines


def number(value: Any) -> str:
    """A measured number, or a ratio with its quartiles, in a few digits.

    >>> number(12345.6), number([2.0, 1.905, 2.104]), number(0.0123), number(None)
    ('12,346', '2.00 [1.91, 2.10]', '0.0123', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, list | tuple):
        middle, low, high = value
        return f"{number(middle)} [{number(low)}, {number(high)}]"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def measured_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown tables of rows: one per title and set of columns, in the order of their rows."""
    tables: dict[tuple[str, tuple[str, ...]], list[Mapping[str, Any]]] = {}
    for row in rows:
        columns = tuple(key for key in row if key != "table")
        tables.setdefault((str(row.get("table", "")), columns), []).append(row)
    lines: list[str] = []
    for (title, columns), members in tables.items():
        lines += ["", *([f"**{title}**", ""] if title else [])]
        lines.append("| " + " | ".join(c.replace("_", " ") for c in columns) + " |")
        kinds = ["--:" if not isinstance(members[0][c], str) else ":--" for c in columns]
        lines.append("|" + "|".join(kinds) + "|")
        lines += ["| " + " | ".join(number(row[c]) for c in columns) + " |" for row in members]
    return lines[1:]


def section_text(section: Mapping[str, Any]) -> str:
    """One benchmark's goals, what was measured, and its notes."""
    parts = [f"## {section['about']}", ""]
    if section.get("quick"):
        parts += [
            "A quick run, on less work: it proves that the script works and nothing else.",
            "",
        ]
    goals = goal_lines(section["goals"])
    parts += [*goals, ""] if goals else []
    parts += [*measured_lines(section["measured"]), ""] if section["measured"] else []
    parts += [f"{note}" for note in section["notes"]]
    return "\n".join(parts).rstrip() + "\n"


def about(key: str, record: Mapping[str, Any]) -> str:
    """A row on a machine and on how busy it was."""
    machine, load = record["machine"], max(s.get("load", 0.0) for s in shown(record))
    busy = " (other work ran: trust ratios and CPU times)" if load > machine["cores"] else ""
    cells = [
        key, f"{machine['memory_gib']} GiB", machine["vector_unit"], machine["gpu"] or "none",
        f"{machine['system']}, Python {machine['python']}, torch {machine['torch']}",
        f"{load:.1f}{busy}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page(report: Mapping[str, Any]) -> str:
    """docs/benchmarks.md, from what `bench` wrote."""
    machines = report["machines"]
    lines = [
        "# Benchmarks",
        "",
        "For everyone who wants the figures behind [performance](performance.md): every goal, and "
        "what each machine measured. `make bench` writes this page; `docs/benchmarks.json` has all "
        "measurements.",
        "",
        *summary(machines),
        "",
        "Each number comes from one run of the scripts in [benchmarks](../benchmarks/README.md). "
        "A ratio is the median over repetitions with its [quartiles]; the compared ways take turns "
        "in one process. CPU time includes child processes. A goal that one machine meets may be "
        "missed on another.",
        "",
        "| machine | memory | vector unit | GPU | system | highest load when a section began |",
        "|:--|--:|:--|:--|:--|--:|",
        *(about(key, record) for key, record in machines.items()),
    ]
    return "\n".join(lines) + "\n"
