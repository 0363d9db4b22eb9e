"""Names with keywords, as written on the command line and in TOML.

    fedprox(mu=0.1)+ga(step=0.05)        mlp(widths=[64, 64])        sgd(lr=0.1, momentum=0.9)

An expression is read, never evaluated. A name may be `module:name`, a user's own part:
`my_methods:tilted(power=2)+ga`.
"""

import ast
import difflib
import importlib
import inspect
import keyword
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from unseen.errors import UnseenError, nearest
from unseen.ranges import check_all, with_one_name

T = TypeVar("T")

VALUES = "a finite number, a string, True, False, None, or a list or tuple of these"
EXAMPLE = "fedprox(mu=0.1)+ga(step=0.05)"

_NAME = re.compile(r"[a-z][a-z0-9]*([-/][a-z0-9]+)*")
_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
#: A quoted string, which stays as it is; or what Python would not take for one name: module:name,
#: and a name with dashes and slashes.
_QUOTED_OR_NAME = re.compile(
    r"""('''|\"""|'|")(?:\\.|(?!\1).)*\1"""
    r"""|(?<![\w.])[A-Za-z_]\w*(?:(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*|(?:[-/]\w+)+)""",
    re.DOTALL,
)


@dataclass(frozen=True)
class Call:
    """One part of an expression: a name, and its options by keyword.

    Names are kept in lower case and with dashes, so that `MNIST_CNN` and `mnist-cnn` are one; a
    `module:name` stays as it is.

    Example:
        >>> Call("Deep_All") == Call("deep-all"), Call("my_methods:Deep").name
        (True, 'my_methods:Deep')
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = _PATH.fullmatch(self.name) is not None
        object.__setattr__(self, "name", self.name if own else fold(self.name))
        object.__setattr__(self, "arguments", with_one_name(self.name, self.arguments))
        if not own and (not _NAME.fullmatch(self.name) or keyword.iskeyword(self.name)):
            raise UnseenError(
                "a name is made of letters, digits, single dashes and slashes, starts with a "
                f"letter and is not a keyword of Python; found {self.name!r}"
            )
        for option, value in self.arguments.items():
            if not _OPTION.fullmatch(option) or keyword.iskeyword(option):
                raise UnseenError(f"{option!r} cannot be the name of an option")
            if not _plain(value):
                raise UnseenError(f"the option {option!r} must be {VALUES}; found {value!r}")


def fold(name: str) -> str:
    """Return the form in which names are compared: lower case, dashes for underscores."""
    return name.lower().replace("_", "-")


def parse(text: str) -> tuple[Call, ...]:
    """Return the parts of an expression, in order; UnseenError shows the place of a mistake.

    Example:
        >>> parse("fedprox(mu=0.1)+ga")
        (Call(name='fedprox', arguments={'mu': 0.1}), Call(name='ga', arguments={}))
    """
    return tuple(_Reader(text.strip()).parts())


def nested(text: str) -> Iterator[Call]:
    """Yield the parts of an expression, and those of expressions among its options, at any depth.

    Example:
        >>> [call.name for call in nested("stack(members=['glm', 'fedavg+ga'])")]
        ['stack', 'glm', 'fedavg', 'ga']
    """
    later: list[object] = [*parse(text)]
    while later:
        match later.pop(0):
            case Call() as call:
                yield call
                later += call.arguments.values()
            case str() as option:
                with suppress(UnseenError):  # most texts are not expressions
                    later += parse(option)
            case list() | tuple() as several:
                later += several


def text(calls: tuple[Call, ...]) -> str:
    """Return the canonical text: options in the order given, none added; `parse(text(c)) == c`.

    Example:
        >>> text(parse("MLP( widths=[64,64] )"))
        'mlp(widths=[64, 64])'
    """
    options = [", ".join(f"{k}={v!r}" for k, v in call.arguments.items()) for call in calls]
    parts = zip(calls, options, strict=True)
    return "+".join(f"{call.name}({inside})" if inside else call.name for call, inside in parts)


def options(
    part: Callable[..., object], skip: int = 0, own: bool = False
) -> dict[str, inspect.Parameter]:
    """Return the parameters that a user may set.

    Of a function these are the keyword-only ones; of a class, and of a user's part, all after the
    first.

    Args:
        part: The function or class.
        skip: How many positional arguments come first, which are not options.
        own: Whether the part is a user's.
    """
    every = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kinds = every if own or inspect.isclass(part) else every[:1]
    parameters = list(inspect.signature(part).parameters.values())
    return {p.name: p for p in parameters[skip:] if p.kind in kinds}


def resolve(
    kind: str,
    call: Call,
    table: Mapping[str, Callable[..., object]],
    first: tuple[object, ...] = (),
    own: bool = False,
) -> object:
    """Find `call.name` in `table` and call it: `table[name](*first, **arguments)`.

    Example:
        >>> resolve("sort", parse("by-key(reverse=True)")[0], {"by_key": sorted}, ([1, 3, 2],))
        [3, 2, 1]

    Args:
        kind: What the table holds, for the messages.
        call: The name and the options.
        table: The parts by name.
        first: Positional arguments, which are not options.
        own: Whether `module:name` may name a user's part that is not in the table.

    Raises:
        UnseenError: With the nearest right name or option, the options with their defaults, and
            those that must be set and are not.
    """
    own = own and ":" in call.name
    part = own_part(kind, call.name) if own else named(kind, call.name, table)
    settable = options(part, len(first), own)
    forms = (n if p.default is p.empty else f"{n}={p.default!r}" for n, p in settable.items())
    listed = f"Its options: {', '.join(forms)}." if settable else "It has no options."
    for name in call.arguments:
        if name not in settable:
            close = difflib.get_close_matches(name, settable, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise UnseenError(f"{kind} {call.name!r} has no option {name!r}{hint} {listed}")
    missing = [n for n, p in settable.items() if p.default is p.empty and n not in call.arguments]
    if missing:
        form = ", ".join(f"{name}=..." for name in missing)
        raise UnseenError(
            f"{kind} {call.name!r} needs {', '.join(missing)}.",
            remedy=f"Write {call.name}({form}). {listed}",
        )
    check_all(part, call.arguments, f"{call.name}({{}})")
    if own:
        try:
            inspect.signature(part).bind(*first, **call.arguments)
        except TypeError as error:
            what = f"{kind} {call.name!r} is called with {len(first)} argument and its options; "
            raise UnseenError(f"{what}{error}.", remedy="See `unseen new`.") from None
    return part(*first, **call.arguments)


def takes(kind: str, name: str, option: str, table: Mapping[str, Callable[..., object]]) -> bool:
    """Return whether a part of the table, or a user's `module:name`, has the option."""
    own = ":" in name
    part = own_part(kind, name) if own else named(kind, name, table)
    return option in options(part, 1, own)


def named(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return the entry of a table, whatever the dashes and the case of its name there."""
    names = {fold(entry): entry for entry in table}
    if name not in names:
        raise nearest(kind, name, table)
    return table[names[name]]


def own_part(kind: str, path: str) -> Callable[..., object]:
    """Return the user's function or class that `module:name` names."""
    part = load_object(path)
    if not callable(part):
        raise UnseenError(
            f"{kind} {path!r} must be a function or a class; found {type(part).__name__}."
        )
    return part


def load_object(path: str) -> object:
    """Return the object that `package.module:name` names.

    It is imported with the current directory first on the path, where it then stays for what the
    module imports later.

    Example:
        >>> load_object("math:tau")
        6.283185307179586
    """
    module, _, name = path.partition(":")
    words = [*module.split("."), name]
    if module.endswith(".py") or not all(word.isidentifier() for word in words):
        raise UnseenError(
            f"expected package.module:name, for example my_models:SmallNet for SmallNet in "
            f"my_models.py; found {path!r}."
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        if lacks is not None and f"{module}.".startswith(f"{lacks}."):
            raise UnseenError(
                f"no module {lacks!r}, for {path!r}, in {here} nor among the installed packages.",
                remedy="Run from the folder that holds it, or install it.",
            ) from error
        raise UnseenError(
            f"importing {module!r} failed with {type(error).__name__}: {error}"
        ) from error
    if not hasattr(loaded, name):
        public = [n for n in vars(loaded) if not n.startswith("_")]
        raise nearest(f"name in module {module!r}:", name, public)
    return getattr(loaded, name)


class _Reader:
    """Walks the syntax tree of one expression; knows the text, so that errors show the place."""

    def __init__(self, source: str) -> None:
        self.source = source

    def parts(self) -> Iterator[Call]:
        """Yield the terms, left to right."""
        if not self.source:
            remedy = f"Write, for example, {EXAMPLE}."
            raise UnseenError("expected an expression, found nothing.", remedy=remedy)
        # Underscores for dashes: as long as before, so that every column keeps its meaning.
        tame = _QUOTED_OR_NAME.sub(
            lambda m: m[0] if m[1] else re.sub("[-./:]", "_", m[0]), self.source
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # an unknown escape, such as "\d", is a mistake
                later = [ast.parse(tame, mode="eval").body]
        except SyntaxError as error:
            line = error.lineno or 1  # no offset: the text ends where it should go on
            column = error.offset - 1 if error.offset else len(self.line(line))
            hint = "; before a text with backslashes write r: r'...'" * ("escape" in error.msg)
            raise self.error(line, column, error.msg + hint) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise self.error(1, 0, str(error) or "it is nested too deep") from None
        while later:  # a loop, since long sums nest to the left
            if isinstance(term := later.pop(), ast.BinOp) and isinstance(term.op, ast.Add):
                later += [term.right, term.left]
            else:
                yield self.call(term)

    def call(self, node: ast.expr) -> Call:
        name = node.func if isinstance(node, ast.Call) else node
        if not isinstance(name, ast.Name):
            what = f"expected a name, found {self.source_of(node)}; parts are joined by +"
            raise self.at(node, what)
        text = self.source_of(name)  # as it is in the text, not as it was tamed
        arguments: dict[str, object] = {}
        if isinstance(node, ast.Call):
            if node.args:
                form = f"{fold(text)}(option={self.source_of(node.args[0])})"
                raise self.at(node.args[0], f"options are given by keyword, as in {form}")
            for item in node.keywords:
                if item.arg is None:
                    raise self.at(item.value, "options are given by keyword, one by one")
                if item.arg in arguments:
                    raise self.at(item, f"the option {item.arg!r} is set twice")
                arguments[item.arg] = self.value(item.value)
        try:
            return Call(text, arguments)
        except UnseenError as error:
            raise self.at(node, str(error)) from None

    def value(self, node: ast.expr) -> object:
        if isinstance(node, ast.List | ast.Tuple):
            items = [self.value(item) for item in node.elts]
            return items if isinstance(node, ast.List) else tuple(items)
        with suppress(ValueError, TypeError):
            if _plain(value := ast.literal_eval(node)):
                return value
        what = f"a value is {VALUES}; found {self.source_of(node)}"
        if isinstance(node, ast.Name):
            what = f"a text is written in quotes: {self.source_of(node)!r}"
            if (word := node.id.title()) in ("True", "False", "None"):
                what = f"write {word}, as Python does"
        raise self.at(node, what)

    def source_of(self, node: ast.expr) -> str:
        return ast.get_source_segment(self.source, node) or "nothing"

    def at(self, node: ast.expr | ast.keyword, what: str) -> UnseenError:
        line = self.line(node.lineno).encode()
        return self.error(node.lineno, len(line[: node.col_offset].decode()), what)

    def error(self, line: int, column: int, what: str) -> UnseenError:
        """Return the error with the line in question and a caret under its place."""
        where = f"column {column + 1}" if line == 1 else f"line {line}, column {column + 1}"
        return UnseenError(
            f"cannot read the expression at {where}: {what}.\n"
            f"    {self.line(line)}\n    {' ' * column}^\n"
            f"Write, for example, {EXAMPLE}."
        )

    def line(self, number: int) -> str:
        lines = re.split(r"\r\n|\r|\n", self.source)
        return lines[min(number, len(lines)) - 1]


def _plain(value: object) -> bool:
    """Return whether the value can be written in an expression and read back."""
    if type(value) in (list, tuple):
        return all(map(_plain, value))  # type: ignore[call-overload]
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)
