"""How a study deals its source domains out to several clients each."""

from typing import Annotated, cast

from pydantic import AfterValidator

from unseen.core.partition import PARTITIONS, Partition
from unseen.errors import UnseenError
from unseen.expression import parse, resolve


def read(text: str) -> Partition | None:
    """Return the partition that an expression names; None where it is empty.

    Example:
        >>> read("domains(per=25, mix=0.5)")
        Domains(per=25, mix=0.5)
    """
    if not text:
        return None
    calls = parse(text)
    if len(calls) != 1:
        raise UnseenError(f"partition takes one kind; found {len(calls)} in {text!r}.")
    return cast(Partition, resolve("partition", calls[0], PARTITIONS))


def clients_per_domain(text: str) -> int:
    """Return how many clients a partition makes of one domain."""
    kind = read(text)
    return 1 if kind is None else kind.per


def _read(text: str) -> str:
    try:
        read(text)
    except UnseenError as error:  # whose marks of a place take lines of their own
        raise UnseenError(" ".join(str(error).split())) from None
    return text


#: An expression that `read` understands.
Expression = Annotated[str, AfterValidator(_read)]
