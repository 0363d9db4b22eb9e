"""What the documentation's site does beyond Markdown: hooks of MkDocs, named in mkdocs.yml.

Pages outside of docs join the site from where they lie, formulas become MathML (which browsers
draw without a script), the packages' flowchart and the gallery's figures become SVG, and every
public name must have its place in the reference.
"""

from __future__ import annotations

import importlib
import os
import posixpath
import re
import sys
import tomllib
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src")]

import architecture  # noqa: E402

from unseen import version  # noqa: E402

#: Pages that lie outside of docs, and their places on the site.
OUTSIDE = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/measuring.md",
}
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
_FLOWCHART = re.compile(r'<pre class="mermaid"><code>flowchart.*?</code></pre>', re.DOTALL)
_FIGURES = re.compile(r"<!-- figures of (\S+): (.*?) -->")


def on_config(config: Any) -> Any:
    """Put the pages of folders into the navigation, and the version and address onto pages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    config.repo_url, config.repo_name = (
        project["urls"]["Repository"],
        f"unseen {version.__version__}",
    )
    config.edit_uri = "edit/main/docs/"
    listed = set(re.findall(r"[\w/.-]+\.md", str(config.nav)))
    config.nav = list(_navigation(config.nav, Path(config.docs_dir), listed))
    return config


def _navigation(entries: list[Any], docs: Path, listed: set[str]) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, dict):
            yield {
                title: list(_navigation(inner, docs, listed)) if isinstance(inner, list) else inner
                for title, inner in entry.items()
            }
        elif entry.startswith("..."):
            pages = sorted(p.relative_to(docs) for p in (docs / entry[3:]).rglob("*.md"))
            yield from (_titled(page) for page in pages if page.as_posix() not in listed)
        else:
            yield entry


def _titled(page: Path) -> dict[str, str]:
    """Return a page under its name; a table under that of its folder, a comparison under both."""
    folder, name = page.parent.name, page.stem
    title = {"table": folder, "compare": folder, "loss": f"{folder}, loss"}.get(name, name)
    return {title: page.as_posix()}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside of docs."""
    for name, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to where their targets are on the site; name code that is not on it."""
    source = Path(page.file.abs_src_path)
    if page.file.src_uri.startswith("reference/"):  # found after the pages that explain
        page.meta["search"] = {"boost": 0.3}

    def pointed(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match[1]))
        if not target.exists():
            return match[0]
        place = OUTSIDE.get(target.relative_to(ROOT).as_posix())
        if place is None and not target.is_relative_to(config.docs_dir):
            raise PluginError(f"{source}: {match[1]} is not on the site")
        place = place or target.relative_to(config.docs_dir).as_posix()
        return posixpath.relpath(place, posixpath.dirname(page.file.src_uri)) + (match[2] or "")

    return _LINK.sub(pointed, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Return the page with formulas as MathML, and with its pictures."""
    html = _FORMULA.sub(lambda m: mathml(unescape(m[3]), m[2] == "["), html)
    html = _FLOWCHART.sub(lambda _: architecture.svg(), html)
    folder = Path(config.docs_dir)
    return _FIGURES.sub(lambda m: gallery(folder / m[1], m[2].split(", ")), html)


def mathml(tex: str, block: bool) -> str:
    """Return a formula as MathML; what is too wide for a phone can be moved."""
    known = tex.replace("{aligned}", "{align*}").replace(r"\_", "_")  # as `convert` spells them
    formula = convert(known.strip(), display="block" if block else "inline")
    if "\\" in formula:
        raise PluginError(f"a command of TeX that is not known: {tex}")
    return f'<div class="formula">{formula}</div>' if block else formula


def gallery(report: Path, names: list[str]) -> str:
    """Return figures of a report's page by the names of their files."""
    figures = {}
    for figure in re.findall(r"<figure.*?</figure>", report.read_text("utf-8"), re.DOTALL):
        if match := re.search(r'class="file">\(([^)]*)\)', figure):
            figures[unescape(match[1])] = figure
    return "\n".join(f'<div class="report">{figures[name]}</div>' for name in names)


def on_post_build(config: Any) -> None:
    """Fail where a public name has no place in the reference."""
    inventory = Path(config.site_dir, "objects.inv").read_bytes().split(b"\n", 4)[4]
    places = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    if missing := sorted(public_names() - places):
        raise PluginError(f"the reference lacks {', '.join(missing)}")


def public_names() -> set[str]:
    """Return every name that a package of ours calls public, as `package.name`."""
    names = set()
    for module in architecture.modules():
        package = architecture.modules()[module].name == "__init__.py"
        if package and module not in ("unseen.cli", "unseen.cli.skeletons"):
            public = getattr(importlib.import_module(module), "__all__", ())
            names |= {f"{module}.{name}" for name in public if not name.startswith("__")}
    return names
