"""The answer as a page, a paragraph and a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unseen.choose.answer import Choice, Row, figure_text
from unseen.choose.expectation import LEVEL
from unseen.choose.trials import ALONE, BASE, POOLED
from unseen.core.atomic import write_atomically
from unseen.core.templates import render
from unseen.errors import UnseenError
from unseen.results.comparison import LEVEL as ALPHA

#: What a server must see, in words.
SERVER = {"scalars": "sums", "products": "inner products", "updates": "every site's model"}
#: The files of an answer.
PAGE, DATA = "choice.md", "choice.json"


def paragraph(choice: Choice) -> str:
    """Return the answer in a few sentences."""
    row = choice.row(choice.recipe)
    expected = row.expected

    def figure(number: float) -> str:
        return figure_text(number, choice.metric)

    sentences = [
        f"Recommended: {choice.recipe}. At a new site expect {choice.metric} "
        f"{figure(expected.mean)}, and with {LEVEL:.0%} chance between {figure(expected.low)} and "
        f"{figure(expected.high)}, judged by {expected.sites} sites that the model had not seen."
    ]
    chances = [f"{other} with {chance:.0%}" for other, chance in row.against.items()]
    if chances:
        sentences.append(f"It is better there than {' and than '.join(chances)} chance.")
    if len(choice.tied) == 1:
        sentences.append(
            f"It is ahead of every other recipe (p < {ALPHA}, Wilcoxon over sites, Holm)."
        )
    elif choice.recipe == choice.best:
        names = ", ".join(name for name in choice.tied if name != choice.recipe)
        sentences.append(f"It has the best mean; these sites cannot tell it from: {names}.")
    else:
        best = choice.row(choice.best)
        less = (
            f"needs {SERVER[row.sees]} at the server, and not {SERVER[best.sees]}"
            if row.sees != best.sees
            else f"sends {size(row.sent)} for {size(best.sent)}"
        )
        sentences.append(
            f"{choice.best} has the best mean, {figure(best.expected.mean)}, but these sites "
            f"cannot tell the two apart (p = {row.p:.2g}), and {choice.recipe} {less}."
        )
    return " ".join(sentences)


def page(choice: Choice, factors: Sequence[float]) -> str:
    """Return the answer as Markdown.

    Args:
        choice: The answer.
        factors: What learning rates were multiplied by.
    """
    bold = choice.recipe

    def mark(row: Row) -> str:
        name = row.recipe if row.recipe == ALONE else f"`{row.recipe}`"
        return f"**{name}**" if row.recipe == bold else name

    def p(row: Row) -> str:
        return "best" if row.recipe == choice.best else "" if row.p is None else f"{row.p:.2g}"

    def server(row: Row) -> str:
        return {ALONE: "", POOLED: "all rows"}.get(row.recipe, SERVER[row.sees])

    groups = "; ".join(", ".join(sites) for sites in choice.groups.values())
    alone = all(len(sites) == 1 for sites in choice.groups.values())
    return render(
        "unseen.choose", "choice.md.jinja", choice=choice, paragraph=paragraph(choice), base=BASE,
        alone=ALONE, level=f"{LEVEL:.0%}", mark=mark, p=p, size=size,
         server=server,
        figure=lambda number: figure_text(number, choice.metric),
        percent=lambda chance: "" if chance is None else f"{chance:.0%}",
        sites=choice.procedure.sites, rates=", ".join(f"{factor:g}" for factor in factors),
        pooled=POOLED if any(row.recipe == POOLED for row in choice.rows) else "",
        groups_shown="" if alone else groups,
    )  # fmt: skip


def expectation(file: Path) -> dict[str, Any]:
    """Return what a card says of a new site, and the settings to train by, from `choice.json`.

    Args:
        file: What `write` wrote.

    Raises:
        UnseenError: If it is not such a file.
    """
    try:
        choice = json.loads(file.read_text("utf-8"))
        row = next(row for row in choice["rows"] if row["recipe"] == choice["recipe"])
        expected = {name: row["expected"][name] for name in ("mean", "low", "high", "sites")}
        texts = {n: figure_text(expected[n], choice["metric"]) for n in ("mean", "low", "high")}
        return {
            "texts": texts, "study": choice["study"], "recipe": choice["recipe"],
            "metric": choice["metric"], "level": LEVEL, "data": choice["data"], **expected,
        }  # fmt: skip
    except (OSError, ValueError, KeyError, StopIteration, TypeError) as error:
        raise UnseenError(
            f"{file} is not an answer of `unseen choose` ({error}).",
            remedy="Name the choice.json in the folder that it wrote.",
        ) from None


def size(count: float) -> str:
    """Return bytes as people read them.

    Example:
        >>> size(1_234_000), size(980), size(0)
        ('1.2 MB', '980 B', '')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B" if count else ""


def write(choice: Choice, factors: Sequence[float], folder: Path) -> tuple[Path, Path]:
    """Write the page and the file that `unseen train --recipe` reads.

    Args:
        choice: The answer.
        factors: What learning rates were multiplied by.
        folder: Where they go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PAGE, page(choice, factors).encode())
    data = json.dumps(choice.to_json(), indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / DATA, data.encode())
    return folder / PAGE, folder / DATA
