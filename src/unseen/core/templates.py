"""Text written from jinja2 templates that lie next to the code."""

from importlib import resources


def render(package: str, template: str, **values: object) -> str:
    """Return the text of a template; a line with nothing but a statement leaves no line.

    Args:
        package: The package in whose folder the template lies, such as `unseen.serving`.
        template: The file's name.
        values: What the template's names stand for; a missing one is an error.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    text = (resources.files(package) / template).read_text("utf-8")
    return environment.from_string(text).render(values)
