"""Parts that are a method and a modifier of one name, each written once."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Any

from unseen.core import Method
from unseen.errors import Incompatible
from unseen.methods.base import (
    federated,
    gradient_method,
    incompatible,
    model_rule,
    reporting,
)
from unseen.methods.combine import Combine, Mean, Weights
from unseen.methods.new_rule import replace_rule
from unseen.methods.options import documented, option_help, options_from, picked
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


@dataclass(frozen=True)
class ClientPart:
    """A modifier that is a method of its name, too: the same change of FedAvg or of FedSGD.

    The modifier's docstring is the method's page.

    Attributes:
        change: (method, *, options) -> Method.
        weights: Of the clients in the method's mean, by default.
        gradients: Whether the method changes FedSGD instead of FedAvg.
    """

    change: Callable[..., Method]
    weights: Weights = "examples"
    gradients: bool = False

    def method(self, name: str) -> Callable[..., Method]:
        """Return the method (training, *, weights, options) -> Method."""
        base, make = ("fedsgd", gradient_method) if self.gradients else ("fedavg", federated)

        def method(
            training: Training, *, weights: Weights = self.weights, **options: Any
        ) -> Method:
            plain = make(base, training, Mean(weights), "mcmahan2017fedavg")
            try:
                whole = self.change(plain, **options)
            except Incompatible as error:
                raise Incompatible(name, error.why) from error
            return replace(whole, name=name, references=whole.references[len(plain.references) :])

        first, second, _ = inspect.signature(method, eval_str=True).parameters.values()
        _, *own = inspect.signature(self.change, eval_str=True).parameters.values()
        method.__signature__ = inspect.Signature([first, second, *own])  # type: ignore[attr-defined]
        docstring = inspect.getdoc(self.change) or ""
        about = {"weights": "Of the clients in the mean; see `fedavg`.", **option_help(docstring)}
        method.__doc__ = documented(docstring, about)
        method.__name__ = method.__qualname__ = name
        return method

    def modifier(self, name: str) -> Callable[..., Method]:
        """Return the modifier (method, *, options) -> Method."""

        @wraps(self.change)
        def modifier(method: Method, **options: Any) -> Method:
            return self.change(method, **options)

        base = "FedSGD" if self.gradients else "FedAvg"
        about = option_help(inspect.getdoc(self.change) or "")
        modifier.__doc__ = documented(f"Change any method as `{name}` changes {base}.", about)
        return modifier
