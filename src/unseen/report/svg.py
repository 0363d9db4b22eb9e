"""Makes matplotlib's SVG small: a page has hundreds of drawings."""

from __future__ import annotations

import re
from html import escape

from unseen.report.theme import LIGHT

#: The colours' names, by what matplotlib draws with.
NAMES = {colour: name for name, colour in LIGHT.items()}
#: What only matplotlib or an editor needs. Names of groups stay where they are a title.
NEEDLESS = (
    (r"^.*?(?=<svg)|<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>", ""),
    (r"\s*\n\s*", " "),
    (r"> <", "><"),
    (r'<g id="title:([^"]*)">', r"<g ><title>\1</title>"),
    (r'<g id="[^"]*"', "<g"),
    (r' transform="rotate\(-0 [^"]*"', ""),
    (r"font-family: [^;\"]*;?|opacity: 1;|text-anchor: start;?", ""),
    (r"([:;]) (?=[^<>]*>)", r"\1"),
)


def compact(svg: str, label: str, themed: bool) -> str:
    """Return matplotlib's SVG without needless parts, with places to a tenth of a pixel.

    Args:
        svg: What matplotlib wrote.
        label: The text alternative; without one, screen readers skip the drawing.
        themed: For the page: colours are its variables, and letters are its own.
    """
    for pattern, replacement in NEEDLESS:
        svg = re.sub(pattern, replacement, svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", _rounded, svg)
    svg = re.sub(r'<g>((?:<use [^>]*? style="([^"]*)"/>){2,})</g>', _once, svg)
    before = ""
    while svg != before:  # from the inside out
        before, svg = svg, re.sub(r"<g/>|<g>((?:(?!</?g\b).)*)</g>", r"\1", svg)
    box = re.search(r'viewBox="0 0 (\S+) ([^"]*)"', svg)
    assert box is not None
    spoken = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    head = f'<svg {box[0]} {spoken} stroke-linejoin="round"'
    body = svg[svg.index(">") + 1 :]
    if not themed:
        spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        size = f'width="{box[1]}" height="{box[2]}" font-family="DejaVu Sans,sans-serif"'
        return f"{head} {spaces} {size}>{body}\n"
    body = re.sub(r"(?<=[: ])#[0-9a-f]{6}", lambda m: f"var(--{NAMES.get(m[0], 'ink')})", body)
    body = re.sub(r'(?<=style=")font-size:11px;', "", body)
    return f"{head}>{body.replace('xlink:href', 'href')}"


def _rounded(tag: re.Match[str]) -> str:
    text = re.sub(r"\d+\.\d+", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), tag[0])
    return re.sub(r" ?\b([MLCQz])\b ?", r"\1", text) if ' d="' in text else text


def _once(marks: re.Match[str]) -> str:
    """Return marks that look the same with their style at the group, where they all do."""
    style = f' style="{marks[2]}"'
    same = marks[1].count("<use") == marks[1].count(style)
    return f"<g{style}>{marks[1].replace(style, '')}</g>" if same else marks[0]
