"""Settings from the command line: `key=value`, with dotted keys."""

from __future__ import annotations

import tomllib
from typing import Any

from unseen.errors import UnseenError

#: Settings that are lists, which may be written with commas on the command line.
LISTS = {
    "methods", "targets", "seeds", "metrics", "groups", "record", "save", "published",
    "holdout.source", "holdout.validation", "holdout.target", "holdout.growing",
    "federation.sites",
}  # fmt: skip


def parse_override(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, the value in TOML's spelling.

    What is not a TOML value is a string, or where a list belongs the parts between its commas.

    >>> parse_override("training.epochs=5"), parse_override("model=mlp(widths=[64])")
    (('training.epochs', 5), ('model', 'mlp(widths=[64])'))
    >>> parse_override("methods=fedavg,ppdg(lam=0.2, base='raw')"), parse_override("seeds=0,3")
    (('methods', ['fedavg', "ppdg(lam=0.2, base='raw')"]), ('seeds', ['0', '3']))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UnseenError(f"settings are written key=value, such as rounds=40; found {text!r}.")
    key, value = key.strip(), value.strip()
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        found = value
    if key not in LISTS or isinstance(found, list | dict):
        return key, found
    if (key, value) == ("holdout.source", "others") or (key == "seeds" and isinstance(found, int)):
        return key, found
    return key, split_list(found if isinstance(found, str) else value)


def put(settings: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key of nested settings."""
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = settings.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UnseenError(f"{dotted}: {parent!r} is a single value, not a table.")
        settings = inner
    settings[last] = value


def split_list(text: str) -> list[str]:
    """Return comma-separated parts; commas inside brackets do not separate.

    >>> split_list('fedavg, ppdg(lam=0.2, base="running")+ga')
    ['fedavg', 'ppdg(lam=0.2, base="running")+ga']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    *names, last = (part.strip() for part in parts)
    if "" in names:
        raise UnseenError(
            f"the list {text!r} has nothing between two commas or before the first.",
            remedy="Write a name there, or take a comma away.",
        )
    return [*names, last] if last else names  # nothing at all, or a comma at the end
