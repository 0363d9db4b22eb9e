"""A study as a site is asked to take part in it: its settings, and the digest that names it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.studies.settings.study import StudySpec

#: Settings that decide nothing of what a site does.
APART = {"federation", "published"}
#: Settings of a study that sites cannot follow, and why.
SIMULATED = {
    "partition": "each site has the data that it has",
    "cross_evaluation": "local models stay at their sites",
    "weights_bands": "sites take the initial weights from the server",
}
#: Columns that a table must name, with an example of each.
COLUMNS = {"domain": "hospital", "label": "died"}
#: Digits of a digest that people read.
SHORT = 12


def federated(study: StudySpec) -> StudySpec:
    """Return the study as a federation runs it: bad replies are left out unless it says so."""
    check_table(study)
    for setting, why in SIMULATED.items():
        if getattr(study, setting):
            raise UnseenError(f"{setting} is for simulation: {why}.", remedy="Leave it out.")
    if "on_bad_reply" in study.model_fields_set:
        return study
    return study.model_copy(update={"on_bad_reply": "drop"})


def check_table(study: StudySpec) -> None:
    """Refuse a table that does not say which columns hold its label and its site.

    Note:
        One process could not read it either, and a site would find out from the server's message.
    """
    (call,) = parse(study.dataset)
    lacks = [key for key in ("domain", "label") if key not in call.arguments]
    if call.name == "table" and lacks:
        raise UnseenError(
            f"{study.dataset} does not say {' and '.join(f'{key}=...' for key in lacks)}.",
            remedy=f"Add {', '.join(f'{key}={COLUMNS[key]!r}' for key in lacks)}, by the names of "
            "columns. A site's file needs no column of the domain: without it all rows are the "
            "site's, else those in which it has the site's name.",
        )


def settings_of(study: StudySpec) -> dict[str, Any]:
    """Return the settings of a study that sites are sent, as JSON holds them."""
    return study.model_dump(mode="json", exclude=APART)


def digest_of(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 by which a study is known, of its settings as sites are sent them."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Proposal:
    """A study, by what a site is sent of it."""

    study: StudySpec
    signature: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return settings_of(self.study)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the settings: another study, or the same one changed, has another digest."""
        return digest_of(self.settings)
