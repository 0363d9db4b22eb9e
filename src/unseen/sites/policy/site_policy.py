"""`site.toml`: what a site allows, whatever the server asks."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, Field, field_validator

from unseen.errors import UnseenError
from unseen.sites.kits.kit import RULES
from unseen.studies.settings.wording import Settings, WrongSettings, sentences

Channel = Literal["clear", "masks", "ckks"]
#: From the one that shows the server most to the one that shows it least.
CHANNELS: tuple[str, ...] = get_args(Channel)
Sees = Literal["scalars", "products", "updates"]
#: What a server's rule sees of updates, from least to most.
SIGHTS: tuple[str, ...] = get_args(Sees)
Use = Literal["feature", "text", "label", "group", "unit", "domain", "levels"]
#: What stands for every column that has no entry of its own.
EVERY = "*"
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]


def _inside(name: str) -> str:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{name!r} must be a file of the data's folder")
    return name


class Least(Settings):
    """What a study must have at least: the `[least]` table."""

    about: ClassVar[str] = "[least] of site.toml cannot work"
    channel: Channel = "clear"
    blind: bool = False
    batch_size: Count = 2
    steps: Count = 1
    examples: Count = 10
    rows_per_level: Annotated[int, Field(ge=2)] = 5
    rows_per_value: Count = 1
    sites: Count = 2
    noise: Annotated[float, Field(ge=0)] = 0.0


class Most(Settings):
    """What a study may have at most: the `[most]` table.

    With a budget of ε, over all studies by the RDP accountant, no update leaves without noise.
    """

    about: ClassVar[str] = "[most] of site.toml cannot work"
    rounds: Count = 1000
    questions: Count = 10_000
    days: Count = 90
    epsilon: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5


class Methods(Settings):
    """Which methods are allowed: the `[methods]` table."""

    about: ClassVar[str] = "[methods] of site.toml cannot work"
    names: tuple[Name, ...] = ()
    sees: Sees = "updates"
    extras: bool = True


class SitePolicy(Settings):
    """What a site allows: docs/site-policy.md explains every rule.

    Where `datasets` or `columns` are None, any may be read; `"*"` stands for all other columns.
    """

    about: ClassVar[str] = "site.toml cannot work"
    approval: Literal["wait", "auto"] = "wait"
    signed: bool = True
    datasets: tuple[Name, ...] | None = None
    files: tuple[Annotated[str, AfterValidator(_inside)], ...] = ()
    columns: Mapping[Name, tuple[Use, ...]] | None = Field(
        default=None, description="a table of a use, or a list of uses, by column"
    )
    evaluate: tuple[Literal["validation", "target"], ...] = ("validation", "target")
    code: tuple[Name, ...] = ()
    least: Least = Least()
    most: Most = Most()
    methods: Methods = Methods()

    @field_validator("columns", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {name: (uses,) if isinstance(uses, str) else uses for name, uses in value.items()}

    @field_validator("least", "most", "methods", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else value

    @classmethod
    def read(cls, kit: Path) -> Self:
        """Return the policy of a kit; without a `site.toml` the strictest one that can work."""
        file = kit / RULES
        if not file.is_file():
            return cls()
        try:
            return cls(**tomllib.loads(file.read_text("utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UnseenError(f"{file} is not TOML: {error}.") from None
        except WrongSettings as error:
            remedy = "docs/site-policy.md lists every rule."
            raise UnseenError(f"{file}: {sentences(error.faults)}", remedy=remedy) from None

    def uses(self, column: str) -> tuple[str, ...]:
        """Return what a column may be used for; nothing where it has no entry."""
        columns = self.columns or {}
        return columns.get(column, columns.get(EVERY, ()))

    def allows(self, column: str, use: str) -> bool:
        """Return whether a column may be used so; where no column is named, all may."""
        return self.columns is None or use in self.uses(column)
