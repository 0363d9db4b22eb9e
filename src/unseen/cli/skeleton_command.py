"""`unseen new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Kind = Annotated[str, typer.Argument(metavar="method|study|dataset")]
Name = Annotated[str, typer.Argument(help="Of the file and of what is in it, such as my_rule.")]
Out = Annotated[Path, typer.Option(help="Folder to write into.")]

NEXT = {
    "method": 'unseen study digits --methods "fedavg,{0}:{0}"',
    "dataset": "unseen study digits dataset={0}:{0} --out results/{0}",
    "study": "unseen study {0}.toml --dry-run",
}


def new(kind: Kind, name: Name, out: Out = Path()) -> None:
    """Write a first method, study or data set of your own, with its test and its page.

    They pass as they are; write over them. Nothing that is there is overwritten.
    """
    from unseen.cli.skeletons import write

    for path in write(kind, name, out):
        print(path)
    where = "" if out == Path() else f"cd {out} && "
    print(f"try:   {where}pytest test_{name}.py")
    print(f"then:  {where}{NEXT[kind].format(name)}")
