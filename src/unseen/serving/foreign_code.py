"""Code outside `unseen` that a model's directory names, and who may let it run.

A directory is data: JSON and tensors. A `module:factory` in it is not; importing the module already
runs what it holds. So nothing of it is imported before somebody has allowed it.
"""

from collections.abc import Iterator
from contextlib import suppress

from unseen.core.record_lines import Record
from unseen.errors import UnseenError
from unseen.expression import nested
from unseen.studies.settings.user_code import digest_of_source, source_of


def parts(spec: Record) -> list[str]:
    """Return every `module:name` that reading the model, or its data set, would import."""
    study = spec.get("study", {})
    texts = [spec.get("model"), spec.get("method"), study.get("model"), study.get("dataset")]
    texts += [spec.get("data", {}).get("dataset"), *(study.get("methods") or ())]
    return list(dict.fromkeys(path for text in texts if text for path in _paths(str(text))))


def _paths(text: str) -> Iterator[str]:
    with suppress(UnseenError):
        yield from (call.name for call in nested(text) if ":" in call.name)
        return
    if ":" in text:  # it cannot be read, so nothing says that it is harmless
        yield text


def remark(path: str) -> str:
    """Return a part's name, where its code lies and its digest; nothing of it is imported."""
    file = source_of(path)
    where = f"{file}, SHA-256 {digest_of_source(path)}" if file is not None else "no source here"
    return f"{path} ({where})"


def check(spec: Record, allow: bool) -> list[str]:
    """Refuse a model that names code outside `unseen`, unless that may run.

    Returns:
        What runs, in words; nothing for a model of built-in parts.
    """
    words = [remark(path) for path in parts(spec)]
    if words and not allow:
        raise UnseenError(
            f"this model runs code that is not part of unseen: {'; '.join(words)}.",
            remedy="If you trust whoever sent the directory, and this code, run the command again "
            "with --allow-code (in Python: allow_code=True).",
        )
    return words
