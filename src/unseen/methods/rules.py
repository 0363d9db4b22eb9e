"""Methods and modifiers that are a server rule and nothing else, made of the rule's class."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from unseen.core import Method
from unseen.methods.base import (
    federated,
    gradient_method,
    incompatible,
    model_rule,
    reporting,
)
from unseen.methods.combine import Combine, Mean
from unseen.methods.new_rule import replace_rule
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training


@dataclass(frozen=True)
class ServerRule:
    """A rule of `unseen.methods.combine` that is a method, and a modifier of the same name.

    The fields of its class are the options, the class's docstring is the method's page.

    Attributes:
        kind: the rule's class.
        key: its entry in `references.bib`.
        fixed: fields that are not options, and their values.
        gradients: whether the method's clients send one gradient each, so that the training's
            optimiser runs on the server, instead of training.
        losses: whether the rule reads each client's loss of the received model.
    """

    kind: type[Combine]
    key: str
    fixed: Mapping[str, object] = field(default_factory=dict)
    gradients: bool = False
    losses: bool = False

    def method(self, name: str) -> Callable[..., Method]:
        """Return the method (training, *, options) -> Method."""

        def method(training: Training, **options: Any) -> Method:
            rule = self.kind(**picked(self.kind, options), **self.fixed)
            make = gradient_method if self.gradients else federated
            whole = make(name, training, rule, self.key)
            return reporting(whole) if self.losses else whole

        return self._described(method, name, inspect.getdoc(self.kind) or "")

    def modifier(self, name: str) -> Callable[..., Method]:
        """Return the modifier (method, *, options) -> Method."""
        starts = any(f.name == "prior" for f in fields(self.kind))  # type: ignore[arg-type]

        def modifier(method: Method, **options: Any) -> Method:
            changed = replace_rule(method, name, self.key, self.kind, {**options, **self.fixed})
            if not self.losses:
                return changed
            if not starts and not isinstance(model_rule(method), Mean):
                why = f"sets the weights of its clients already, and so would {name}."
                raise incompatible(method, name, why)
            return reporting(changed)

        effect = "become the prior" if starts else "have no effect"
        text = f"Put the rule of `{name}` on the server of any method that averages."
        return self._described(
            modifier, f"add_{name}", f"{text}\n\nThe method's weights {effect}.", "prior"
        )

    def _described(
        self, function: Callable[..., Method], name: str, docstring: str, *without: str
    ) -> Callable[..., Method]:
        function.__name__ = function.__qualname__ = name.replace("-", "_")
        function.__doc__ = docstring
        return options_from(self.kind, without=(*self.fixed, *without))(function)
