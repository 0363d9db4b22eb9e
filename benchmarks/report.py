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


def bench(names: Sequence[str], quick: bool = False, out: Path | None = None) -> dict[str, Any]:
    """Run benchmarks, each in a process of its own: all of them, or those named.

    out: a JSON file to write after each one; sections that are there and are not run stay.
    """
    known = harness.names()
    for name in names:
        if name not in known:
            raise nearest("benchmark", name, known)
    report: dict[str, Any] = {"sections": {}}
    if out is not None and out.exists():
        report = json.loads(out.read_text())
        for section in report["sections"].values():  # this machine may be another
            section.setdefault("processor", report["machine"].get("processor", "?"))
    for name in names or known:
        print(f"{name} ...", file=sys.stderr, flush=True)
        section = harness.in_process(name, quick)
        machine = harness.machine()
        section |= {"commit": harness.commit(), "processor": machine.get("processor", "?")}
        section |= {"date": time.strftime("%Y-%m-%d", time.gmtime())}
        print(section_text(section), flush=True)
        report["sections"][name] = section
        report["machine"] = machine
        report["order"] = [n for n in known if n in report["sections"]]
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(summary(report)))
    return report


def failed(report: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The sections that ended in an error, of those named or of all."""
    asked = [name for name in report["order"] if not names or name in names]
    return [name for name in asked if report["sections"][name].get("failed")]


def summary(report: Mapping[str, Any]) -> list[str]:
    """How many goals are met, and a table of them all."""
    goals = [goal for name in report["order"] for goal in report["sections"][name]["goals"]]
    met = sum(goal["met"] is True for goal in goals)
    missed = sum(goal["met"] is False for goal in goals)
    counts = f"{met} goals met, {missed} not met, {len(goals) - met - missed} not measured"
    return [f"**{counts}.**", "", *goal_lines(goals)]


def goal_lines(goals: Sequence[Mapping[str, Any]]) -> list[str]:
    """A Markdown table of goals, each marked met or not."""
    if not goals:
        return []
    lines = ["| goal | asked | measured | |", "|:--|--:|--:|:--|"]
    for goal in goals:
        asked = f"≥ {goal['at_least']:g}" if goal["at_least"] is not None else ""
        asked += f"≤ {goal['at_most']:g}" if goal["at_most"] is not None else ""
        lines.append(
            f"| {goal['text']} | {asked} | {number(goal['value'])} | {SIGNS[goal['met']]} |"
        )
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


def measured_on(sections: Sequence[Mapping[str, Any]], usual: str) -> str:
    """A paragraph on the processor and the commit that the figures are of."""
    by_processor: dict[str, list[str]] = {}
    for section in sections:
        by_processor.setdefault(section.get("processor", usual), []).append(section["name"])
    commits = " and ".join(dict.fromkeys(section.get("commit", "?") for section in sections))
    if len(by_processor) == 1:
        text = f"All figures were measured on one processor, {next(iter(by_processor))}"
    else:
        parts = [f"{', '.join(names)} on {processor}" for processor, names in by_processor.items()]
        text = f"These sections cannot be compared with each other: {'; '.join(parts)}"
    return f"{text}, at commit {commits}." + (
        " Seconds and ratios are of that processor: on another a goal that is met here may be "
        "missed. An example is in [performance](performance.md#done)."
    )


def page(report: Mapping[str, Any]) -> str:
    """docs/benchmarks.md, from what `bench` wrote."""
    sections = [report["sections"][name] for name in report["order"]]
    about = report["machine"]
    memory, load = about["memory_gib"], max(s.get("load", 0.0) for s in sections)
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench`; every number is from one run of the scripts in "
        "[benchmarks](../benchmarks/README.md). Ways that are compared run in turn in one process, "
        "in an order reversed every second repetition; a ratio is the median over repetitions, "
        "[quartiles] next to it, above 1 where the way is faster than the base. CPU time counts "
        "child processes.",
        "",
        f"Machine: {about['processor']}, {about['cores']} cores, {memory} GiB, "
        f"{about['vector_unit']}, {'no GPU' if about['gpu'] is None else about['gpu']}; "
        f"{about['system']}, Python {about['python']}, torch {about['torch']}. Load when a section "
        f"began, that of the section before it included: {load:.1f} at most"
        + (
            "."
            if load <= about["cores"]
            else ": other work ran at the same time, trust ratios and CPU times."
        ),
        "",
        measured_on(sections, about["processor"]),
        "",
        *summary(report),
        "",
    ]
    for section in sections:
        lines.append(section_text(section))
        lines.append(
            f"*{section['name']}, commit {section.get('commit', '?')}, {section.get('date', '')}, "
            f"{section.get('seconds', 0):.0f} s.*\n"
        )
    return "\n".join(lines)
