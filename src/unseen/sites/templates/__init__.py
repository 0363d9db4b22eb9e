"""Texts that kits and their processes are written from; no torch is imported."""

from importlib.resources import files

from jinja2 import StrictUndefined, Template

__all__ = ["render", "source"]


def source(name: str) -> str:
    """Return one of the files here as it is."""
    return (files(__name__) / name).read_text("utf-8")


def render(name: str, /, **values: object) -> str:
    """Return the text of a template; a missing value is an error."""
    template: Template = Template(
        source(name), undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return template.render(values)
