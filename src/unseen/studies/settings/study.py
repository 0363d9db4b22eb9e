"""A study: methods × hold-out plan × seeds, as one frozen record that a TOML file can hold."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from unseen.core.labels import Kind
from unseen.data.networks.partial import choice
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.studies.settings.client_partition import Expression as PartitionText
from unseen.studies.settings.default_network import (
    as_recorded,
    check_network,
    first_line,
    in_words,
    with_network,
)
from unseen.studies.settings.holdout import PLANS, TABLES, Fixed, Holdout, Name
from unseen.studies.settings.length import with_length
from unseen.studies.settings.named import put_all, settings_of
from unseen.studies.settings.published import printed_in
from unseen.studies.settings.search_plan import Tune
from unseen.studies.settings.training import Count, Recipe
from unseen.studies.settings.wording import Expression, Line, Settings

Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Figure = tuple[str, str] | str
Published = Mapping[str, Mapping[str, Mapping[str, Figure]]]


class Privacy(Settings):
    """What keeps data from whom: the `[privacy]` table of a study. See docs/privacy.md.

    Attributes:
        channel: What the server sees of each update: `clear`, `masks()`, which cancel in the sum,
            or `ckks(gram="exact")`, encrypted, where `sketch(4096)` is for large models.
        server: `blind`, with ckks, never holds the model after round 0.
        examples: `dp(clip=1.0, noise=1.1, delta=1e-5)`, the clients' training by DP-SGD. See
            `unseen.privacy.dp`.
        clients: The same for their replies as wholes, by clipping and noise; `trust="sum"` where
            the channel shows the server no more than sums.
        metrics: `none`: no metric leaves a site either, not even in training, and the model is the
            last round's. For models that real sites train.
        columns: For tables, numeric column -> [low, high], ranges that are known without looking at
            the data: columns are then scaled by them, and no sums leave the sites.
    """

    channel: Expression = "clear"
    server: Literal["clear", "blind"] = "clear"
    examples: Expression = ""
    clients: Expression = ""
    metrics: Literal["plain", "none"] = "plain"
    columns: Mapping[str, tuple[float, float]] | None = None

    @property
    def kind(self) -> str:
        return parse(self.channel)[0].name

    @property
    def noised(self) -> bool:
        return bool(self.examples or self.clients)


class Metrics(Settings):
    """What to record, by the kind of labels: where none are named, what is usual for them."""

    classes: tuple[str, ...] | None = None
    numbers: tuple[str, ...] | None = None
    masks: tuple[str, ...] | None = None
    times: tuple[str, ...] | None = None


class Federation(Settings):
    """How a study runs over real sites: its `[federation]` table. It decides no bits.

    Attributes:
        sites: The names to wait for at the start; where there are none, those in the hold-out plan,
            else whoever is there.
        deadline: Seconds after which a site that is silent is left out of an exchange.
        minimum: Sites that every exchange needs, but for the targets' evaluation.
        patience: Seconds to wait for them before the run stops, to be resumed.
    """

    sites: tuple[str, ...] = ()
    deadline: Annotated[float, Field(gt=0)] = 3600.0
    minimum: Count = 2
    patience: Annotated[float, Field(ge=0)] = 3600.0


class StudySpec(Settings):
    """Methods × hold-out plan × seeds.

    Attributes:
        dataset: A name with options, such as `rotated-mnist(protocol="ghifary")`.
        model: A name with options, or `module:factory`; None for the data set's own.
        weights: A .pth or .safetensors file that the model begins with; `pretrained`, ImageNet's
            of the installed extra; "" where a base names one.
        weights_bands: For other bands than the file's; see
            `unseen.data.networks.weight_files.fill`.
        freeze: What of the network never changes: `trunk`, all before the head; `blocks[:n]`, the
            first n blocks and what lies before them; or `none`. What it makes of an image is
            computed once, kept on disk, and what trains costs what a small network costs.
        features: The type in which that is kept, `float32` or `float16`.
        views: How many changed copies of each training image, by `training.augment`, are kept so.
        train: Which tensors of the rest train: `all`; `norms`, those of normalisation layers and
            all biases; `adapters(rank=4)`, low-rank ones on its 1×1 convolutions; and the head.
        holdout: `leave-one-domain-out`; the one domain to hold out; a table of `source`,
            `validation` and `target` lists, or of `growing` sources; or `none`: all domains train,
            and only the sources' validation splits are reported.
        targets: Only these tasks.
        seeds: How many, or which.
        partition: Several clients of each source domain: `domains(per=4, mix=0.0)`, `dirichlet` or
            `quantity(alpha=0.5, per=4)`; "" is one client each.
        rounds: How many; `until-flat(patience=5, limit=200)` sets `patience` with them.
        patience: A job ends once the sources' mean validation loss has not fallen, by a thousandth
            of itself, for `patience` rounds, or after `rounds`. It does not end methods that end by
            themselves.
        participation: The share (a float) or number (an integer) of clients per round.
        validation: The share of each source domain to select on where there is no official split.
        split: `separate`, drawn for each domain, or `shared`: the same rows of all domains, which
            must be of one size, as where they show the same objects.
        standardise: Columns of tables, and numbers to predict: `pooled`, by mean and deviation of
            all training rows, or `robust`, by the medians of the sites' means and deviations, which
            no single site of three or more can move beyond those of the others.
        metric: What selection and table use, also where `metrics` does not name it (default: dice
            for masks, accuracy, or rmse for numbers, else the first).
        reference: A method that the others are ranked and tested against.
        published: A paper's figures to stand under ours: names of tables that an installed package
            has, such as `csac/table1` or `ga/table1/pacs` of unseen-papers, or metric -> row ->
            column -> figure or [figure, standard error], as texts in the units of our tables.
        metrics: What to record; or lists for `classes`, `numbers`, `masks` and `times` until an
            event, of which the labels decide (default: what is usual for them).
        record: Further records: `gram`, inner products of the updates and of the server's step;
            `drift`, their cosines and lengths, the share of pairs in conflict and the effective
            number of clients; `gaps`, generalization gaps as GA measures them; `weights`, always
            there. `gram`, `drift`, `locals` and `cross_evaluation` look at updates in the clear.
        save: `final` and `locals`, the last round's models, `selected`, the selected round's, with
            all that its predictions need, as safetensors.
        cross_evaluation: Have every local model on every domain in evaluated rounds.
        precision: `bf16`, layers' products in bfloat16, has other numbers; see docs/performance.md.
        stacked: How many perceptrons, those of clients of several jobs, train as one batch, 0 for
            one after the other; figures are equal up to rounding.
        tune: A search for each method and target on the sources alone: its `[tune]` table.
        memory_limit: GiB that a round's K×P matrix may take in memory, above which it lies in a
            file (default: half of what is free). It decides no bits.
    """

    about: ClassVar[str] = "the study's settings cannot work"
    advice: ClassVar[Mapping[str, str]] = {
        "dataset": "Your own data are a name with options, such as table(path='visits.csv', "
        "site='hospital', label='died'), or a function that loads them, module:function",
        "model": "Your own is named as module:factory",
        "methods": "Your own is named as module:function",
        "holdout": "Without this setting each domain is the target in turn; targets=NAME runs "
        "the task of one of them",
        "training": "In Python it is a dict or an unseen.studies.settings.study.Recipe",
    }
    name: Line = "study"
    title: Line = ""
    dataset: Expression = "rotated-digits"
    model: Expression | None = None
    weights: Line | None = None
    weights_bands: Literal["fresh", "mean"] | None = None
    freeze: Annotated[str, Field(pattern=r"^(none|trunk|blocks\[:[1-9][0-9]*\])$")] = Field(
        "none", description="'none', 'trunk' or 'blocks[:n]' with n from 1 on"
    )
    features: Literal["float32", "float16"] = "float32"
    views: Annotated[int, Field(ge=0)] = 0
    train: Expression = "all"
    methods: Annotated[tuple[Expression, ...], Field(min_length=1)] = ("fedavg",)
    holdout: Holdout = Field(
        "leave-one-domain-out",
        description="'leave-one-domain-out', 'none', or a table of source, validation and target "
        "domains, of growing sources and a target, of groups = 5 left out in turn, or alone = true",
    )
    targets: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    seeds: Count | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = Field(
        3, description="a number of seeds, 1 or more, or a list of which, each 0 or more"
    )
    partition: PartitionText = ""
    rounds: Count = 20
    patience: Count | None = None
    participation: Share | Annotated[int, Field(strict=True, ge=1)] = Field(
        1.0,  # 1 means one client and 1.0 all of them
        description="a share of the clients greater than 0 and at most 1.0, or a number of them",
    )
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    split: Literal["separate", "shared"] = "separate"
    standardise: Literal["pooled", "robust"] = "pooled"
    selection: Expression = "source-validation"
    metric: Line | None = None
    reference: Expression | None = None
    published: str | tuple[str, ...] | Published = Field(
        default_factory=dict,
        description="the name of a published table, a list of such names, or figures by metric, "
        "row and column",
    )
    metrics: tuple[str, ...] | Metrics | None = None
    groups: tuple[str, ...] = ()
    evaluate_every: Count = 1
    on_bad_reply: Literal["stop", "drop"] = "stop"
    device: Line = "cpu"
    threads: Count = 1
    record: tuple[Literal["weights", "gram", "gaps", "drift"], ...] = ()
    save: tuple[Literal["final", "locals", "selected"], ...] = ()
    cross_evaluation: bool = False
    precision: Literal["float32", "bf16"] = "float32"
    stacked: Annotated[int, Field(ge=0)] = 0
    memory_limit: Annotated[float, Field(ge=0)] | None = None
    training: Recipe = Recipe()
    privacy: Privacy = Privacy()
    tune: Tune | None = None
    federation: Federation = Federation()

    def __init__(self, **settings: Any) -> None:  # a mapping of anything; mistakes are explained
        super().__init__(**with_network(with_length(_one_target(settings))))

    @field_validator("weights", "weights_bands", mode="before")
    @classmethod
    def _none_if_empty(cls, value: object) -> object:
        # TOML has no null by which a file could take back what its base sets.
        return None if isinstance(value, str) and not value else value

    @field_validator("holdout", mode="before")
    @classmethod
    def _one_plan(cls, value: object) -> object:
        if isinstance(value, str) and value not in PLANS:
            (close,) = difflib.get_close_matches(value, PLANS, n=1)
            raise ValueError(
                "a domain's name, 'leave-one-domain-out', 'none' or a [holdout] table; did you "
                f"mean {close!r}?"
            )
        # Choosing the kind of plan here keeps the errors to those of that kind.
        if isinstance(value, dict):
            return next((kind for key, kind in TABLES.items() if key in value), Fixed)(**value)
        return value

    # The one that pydantic runs first: keys as the texts that keywords are.
    @field_validator(
        "holdout", "training", "privacy", "federation", "metrics", "tune", mode="before"
    )
    @classmethod
    def _named(cls, value: object) -> object:
        return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else value

    @field_validator("train")
    @classmethod
    def _names_what_trains(cls, value: str) -> str:
        try:
            choice(value)
        except UnseenError as error:  # whose marks of a place take lines of their own
            raise UnseenError(" ".join(str(error).split())) from None
        return value

    @field_validator("published")
    @classmethod
    def _printed(cls, value: str | tuple[str, ...] | Published) -> object:
        if not isinstance(value, Mapping):
            for name in (value,) if isinstance(value, str) else value:
                printed_in(name)
        return value

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, value: int | tuple[int, ...]) -> int | tuple[int, ...]:
        if isinstance(value, tuple) and len(set(value)) < len(value):
            raise ValueError("each of the seeds may stand there once")
        return value

    @model_validator(mode="after")
    def _parts_that_fit(self) -> Self:
        check_network(self.weights, self.freeze, self.train, self.views, self.training.augment)
        if self.tune is not None:
            self.tune.within(self.rounds, self.patience)
        return self

    def network(self, model: str) -> str:
        """Return the network with what of it stays as it was."""
        return in_words(model, self.model_dump(include={"freeze", "train", "weights"}))

    @property
    def first_line(self) -> str:
        """What a run on images in folders says first."""
        about = {"dataset", "freeze", "train", "weights"}
        return first_line(self.model, self.model_dump(include=about))

    @property
    def frozen(self) -> bool:
        """Whether a part of the network never changes, and inputs are features that it makes."""
        return self.freeze != "none"

    @property
    def keeps_weights(self) -> bool:
        """Whether some of the network's weights stay those of the file."""
        return self.frozen or self.train != "all" or self.training.buffers == "frozen"

    def metrics_of(self, kind: Kind) -> tuple[str, ...] | None:
        """Return what the study records of labels of a kind; None for what is usual."""
        named = self.metrics if isinstance(self.metrics, Metrics) else None
        return self.metrics if named is None else dict(named)[kind]  # type: ignore[return-value]

    @property
    def seed_list(self) -> tuple[int, ...]:
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_limit is None else int(self.memory_limit * 2**30)

    @classmethod
    def read(cls, source: str | Path, overrides: Mapping[str, Any] | None = None) -> Self:
        """Read a study by its name or TOML file; overrides, with dotted keys, win over it."""
        settings, name = settings_of(str(source))
        settings.setdefault("name", name)
        put_all(settings, overrides or {})
        return cls(**settings)


def recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of records, as versions before a setting would have had it.

    Until 0.2 every method kept its own aggregation weights, and `memory_format` was a setting.
    """
    training = {"weights": "method", **settings.get("training", {})}
    settings = {k: v for k, v in settings.items() if (k, v) != ("memory_format", "auto")}
    return {**as_recorded(settings), "training": training}


def _one_target(settings: dict[str, Any]) -> dict[str, Any]:
    """Read `holdout = "west"` as the task of that name, unless it is nearly that of a plan."""
    holdout = str(own) if type(own := settings.get("holdout")) is int else own  # a number: a name
    if not isinstance(holdout, str) or difflib.get_close_matches(holdout, PLANS, n=1):
        return settings
    if (targets := settings.get("targets")) is not None:
        what = f"holdout = {holdout!r} holds out that domain, and targets says {list(targets)}."
        raise UnseenError(what, remedy="Leave one of the two out.")
    return settings | {"holdout": "leave-one-domain-out", "targets": (holdout,)}
