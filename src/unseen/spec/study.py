"""A study: methods × hold-out plan × seeds, as one frozen record that a TOML file can hold."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.spec.holdout import PLANS, Fixed, Growing, Holdout
from unseen.spec.named import settings_of
from unseen.spec.overrides import put
from unseen.spec.published import table
from unseen.spec.wording import Settings

if TYPE_CHECKING:
    from unseen.recipe import Training

Count = Annotated[int, Field(ge=1)]
Figure = tuple[str, str] | str
Published = Mapping[str, Mapping[str, Mapping[str, Figure]]]


class Recipe(Settings):
    """How clients train: the `[training]` table of a study. See `unseen.recipe.Training`.

    optimiser: `sgd(lr=0.1, momentum=0.9, weight_decay=5e-4)` or `adam(lr=0.001)`. epochs or
    steps: local work per round. schedule: `constant`, `step(at=0.8, factor=0.1)`,
    `exponential(factor=0.96)` or `cosine`, over rounds. smoothing: label smoothing. balanced:
    class weights from each client's own counts. oversample: repeat rare classes of the training
    split at random until all are equally frequent. server: how the combined update is applied:
    `add`; `sgd(lr=1)` or `adam(lr=0.01)`, which are torch's; `fedadam(lr=0.01)`, `fedyogi(lr=0.01)`
    or `fedadagrad(lr=0.01)`, which are Reddi et al.'s (no bias correction, tau=1e-3). buffers: what
    becomes of BatchNorm statistics: `average`, `local` or `batch`. augment: changes of the images
    of training steps, such as `random-resized-crop(scale=[0.8, 1])+flip`; see
    `unseen.images.augment`.
    weights: of the clients in every method's mean: `uniform` (each source site counts alike, since
    the next one is another site), `examples`, or `method`, each method's own default, as the
    papers' studies take it. A method that names its own, such as `fedavg(weights="examples")`,
    keeps them.
    """

    optimiser: str = "sgd(lr=0.1)"
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Count = 32
    drop_last: bool = False
    schedule: str = "constant"
    keep_optimiser: bool = False
    smoothing: float = 0.0
    balanced: bool = False
    oversample: bool = False
    server: str = "add"
    buffers: Literal["average", "local", "batch"] = "average"
    augment: str = ""
    weights: Literal["uniform", "examples", "method"] = "uniform"

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("either epochs or steps per round, not both; set one of them only")
        return self

    def build(self, regression: bool) -> Training:
        """The recipe as the objects that methods are made of."""
        from unseen.core.apply import Add, Descend
        from unseen.core.losses import CrossEntropy, SquaredError
        from unseen.core.optimiser import SGD, Adam, fedadagrad, fedadam, fedyogi
        from unseen.core.schedule import SCHEDULES
        from unseen.expression import parse, resolve
        from unseen.images.augment import build
        from unseen.recipe import Training

        optimisers = {"sgd": SGD, "adam": Adam}

        def part(kind: str, expression: str, table: Mapping[str, Any]) -> Any:
            return resolve(kind, _single(kind, parse(expression)), table)

        if regression and (self.balanced or self.oversample or self.smoothing):
            raise UnseenError(
                "balanced, oversample and smoothing are for classes; this data set's labels are "
                "numbers."
            )
        adaptive = {"fedadam": fedadam, "fedyogi": fedyogi, "fedadagrad": fedadagrad}
        server = part("server", self.server, {"add": Add, **optimisers, **adaptive})
        return Training(
            optimiser=part("optimiser", self.optimiser, optimisers),
            epochs=None if self.steps is not None else self.epochs or 1,
            steps=self.steps,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            schedule=part("schedule", self.schedule, SCHEDULES),
            keep_optimiser=self.keep_optimiser,
            loss=SquaredError() if regression else CrossEntropy(self.smoothing, self.balanced),
            server=server if isinstance(server, Add) else Descend(server),
            buffers=self.buffers,
            augment=build(self.augment) if self.augment else None,
            weights=self.weights,
        )


class Privacy(Settings):
    """What keeps data from whom: the `[privacy]` table of a study. See docs/privacy.md.

    examples: `dp(clip=1.0, noise=1.1, delta=1e-5)`, the clients' training by DP-SGD. clients: the
    same for their replies as wholes, by clipping and noise; `trust="sum"` where the channel shows
    the server no more than sums. See `unseen.privacy.dp`. channel: what the server sees of each
    update: `clear`, `masks()`, which cancel in the sum, or `ckks(gram="exact")`, encrypted, where
    `sketch(4096)` is for large models. server: `blind`, with ckks, never holds the model after
    round 0. columns: for tables, numeric column -> [low, high], ranges that are known without
    looking at the data: columns are then scaled by them, and no sums leave the sites.
    """

    channel: str = "clear"
    server: Literal["clear", "blind"] = "clear"
    examples: str = ""
    clients: str = ""
    columns: Mapping[str, tuple[float, float]] | None = None

    @property
    def kind(self) -> str:
        """The name of the channel, without its options."""
        return parse(self.channel)[0].name

    @property
    def noised(self) -> bool:
        """Whether the study asks for noise of any kind."""
        return bool(self.examples or self.clients)


class Metrics(Settings):
    """What to record, by the kind of labels: where none are named, what is usual for them."""

    classes: tuple[str, ...] | None = None
    numbers: tuple[str, ...] | None = None


class Federation(Settings):
    """How a study runs over real sites: its `[federation]` table. It decides no bits.

    sites: the names to wait for at the start (default: those in the hold-out plan, else whoever is
    there). deadline: seconds until a site that has not answered is left out of an exchange.
    minimum: sites without which no exchange is concluded, but for the targets' evaluation.
    patience: seconds to wait for them before the run stops, to be gone on with by the same command.
    """

    sites: tuple[str, ...] = ()
    deadline: Annotated[float, Field(gt=0)] = 3600.0
    minimum: Count = 2
    patience: Annotated[float, Field(ge=0)] = 3600.0


class StudySpec(Settings):
    """Methods × hold-out plan × seeds.

    dataset: a name with options, such as `rotated-mnist(protocol="ghifary")`. model: a name with
    options, `module:factory`, or none for the data set's own. weights: a .pth or .safetensors file
    that the model begins with, "" for none where a base names one; weights_bands: for images of
    another number of bands than the file's, see `unseen.models.weight_files.fill`. holdout:
    `leave-one-domain-out`, or a domain's name: only that one is held out; or a table of `source`,
    `validation` and `target` lists, or of `growing` sources, or `none`: all domains train and the
    sources' validation splits are all that is reported. targets: only these tasks. seeds: how many,
    or which. participation: share (a float) or number (an integer) of clients per round.
    validation: share of each source domain held back for selection where there is no official
    split. split: drawn for each domain, or `shared`: the same rows of all domains, which must be of
    one size, as where they show the same objects. metrics: what to record; or two lists, for
    `classes` and for `numbers`, of which the labels decide (default: what is usual for them).
    metric: what selection and table go by, measured too where `metrics` does not name it (default:
    accuracy, or rmse for numbers, else the first). reference: a method that the others are ranked
    and tested against. precision: `bf16` computes the products of layers in bfloat16, faster on
    processors made for it, and other numbers; see docs/performance.md. stacked: how many models,
    those of clients of several jobs, are trained as one batch, 0 for one after the other: for GPUs;
    figures are then equal up to rounding. memory_limit: GiB that a round's K×P matrix may take in
    memory, above which it lies in a file (default: half of what is free); it decides no bits.
    record: further records: `gram`, inner products of the updates and of the server's step; `gaps`,
    generalization gaps as GA measures them; `weights`, those of the rules, always there. save:
    `final` and `locals`, the last round's models, `selected`, the selected round's, with all that
    its predictions need, as safetensors. cross_evaluation: every local model on every domain,
    whenever the round is evaluated. These three look at updates in the clear. published: a paper's
    figures to stand under ours: names of tables in `unseen.spec.published`, such as `csac/table1`
    or `ga/table1/pacs`, or metric -> row -> column -> figure or [figure, standard error], as texts
    in the units of our tables.
    """

    about: ClassVar[str] = "the study's settings cannot work"
    advice: ClassVar[Mapping[str, str]] = {
        "dataset": "Your own data are a name with options, such as table(path='visits.csv', "
        "domain='site', label='died'), or a function that loads them, module:function",
        "model": "Your own is named as module:factory",
        "methods": "Your own is named as module:function",
        "holdout": "Without this setting each domain is the target in turn; targets=NAME runs "
        "the task of one of them",
        "training": "In Python it is a dict or an unseen.spec.study.Recipe",
    }
    name: str = "study"
    title: str = ""
    dataset: str = "rotated-digits"
    model: str | None = None
    weights: str | None = None
    weights_bands: Literal["fresh", "mean"] | None = None
    methods: Annotated[tuple[str, ...], Field(min_length=1)] = ("fedavg",)
    holdout: Holdout = Field(
        "leave-one-domain-out",
        description="'leave-one-domain-out', 'none', or a table of source, validation and target "
        "domains, or of growing sources and a target",
    )
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    seeds: Count | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = Field(
        3, description="a number of seeds, 1 or more, or a list of which, each 0 or more"
    )
    rounds: Count = 20
    participation: Annotated[float, Field(gt=0, le=1)] | Count = Field(
        1.0,
        description="a share of the clients greater than 0 and at most 1.0, or a number of them",
    )
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    split: Literal["separate", "shared"] = "separate"
    selection: str = "source-validation"
    metric: str | None = None
    reference: str | None = None
    published: str | tuple[str, ...] | Published = Field(
        default_factory=dict,
        description="the name of a published table, a list of such names, or figures by metric, "
        "row and column",
    )
    metrics: tuple[str, ...] | Metrics | None = None
    groups: tuple[str, ...] = ()
    evaluate_every: Count = 1
    on_bad_reply: Literal["stop", "drop"] = "stop"
    device: str = "cpu"
    threads: Count = 1
    record: tuple[Literal["weights", "gram", "gaps"], ...] = ()
    save: tuple[Literal["final", "locals", "selected"], ...] = ()
    cross_evaluation: bool = False
    memory_format: Literal["auto", "contiguous", "channels-last"] = "auto"
    precision: Literal["float32", "bf16"] = "float32"
    stacked: Annotated[int, Field(ge=0)] = 0
    memory_limit: Annotated[float, Field(ge=0)] | None = None
    training: Recipe = Recipe()
    privacy: Privacy = Privacy()
    federation: Federation = Federation()

    def __init__(self, **settings: Any) -> None:  # a mapping of anything; mistakes are explained
        super().__init__(**_one_target(settings))

    @field_validator("participation", mode="before")
    @classmethod
    def _keep_kind(cls, value: object) -> object:
        # 1 means one client and 1.0 all of them; pydantic would turn the one into the other.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"it must be {cls.model_fields['participation'].description}")
        return value

    @field_validator("weights", "weights_bands", mode="before")
    @classmethod
    def _none_if_empty(cls, value: object) -> object:
        # TOML has no null by which a file could take back what its base sets.
        return None if isinstance(value, str) and not value else value

    @field_validator("training", "privacy", "federation", "metrics", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else value

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
        if not isinstance(value, Mapping):
            return value
        kind = Growing if "growing" in value else Fixed
        return kind(**{str(key): part for key, part in value.items()})

    @field_validator("published")
    @classmethod
    def _printed(cls, value: str | tuple[str, ...] | Published) -> object:
        names = (value,) if isinstance(value, str) else value
        if not isinstance(names, Mapping):
            for name in names:
                table(name).shown()
        return value

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, value: int | tuple[int, ...]) -> int | tuple[int, ...]:
        if isinstance(value, tuple) and len(set(value)) < len(value):
            raise ValueError("each of the seeds may stand there once")
        return value

    def metrics_of(self, classes: bool) -> tuple[str, ...] | None:
        """What the study records of classes, or else of numbers; None where it does not say."""
        if isinstance(self.metrics, Metrics):
            return self.metrics.classes if classes else self.metrics.numbers
        return self.metrics

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds, spelled out."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @classmethod
    def read(cls, source: str | Path, overrides: Mapping[str, Any] | None = None) -> Self:
        """A study by name, or from a TOML file; overrides (dotted keys) win over the file.

        A file that says `base = "name"` takes from that study what it does not set itself.
        """
        found, name = settings_of(str(source))
        settings = {"name": name} | found
        for key, value in (overrides or {}).items():
            put(settings, key, value)
        return cls(**settings)


def recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of records, with the values that versions before a setting had in its place.

    Until 0.2 every method kept its own aggregation weights.
    """
    training = {"weights": "method", **settings.get("training", {})}
    return {**settings, "training": training}


def _one_target(settings: dict[str, Any]) -> dict[str, Any]:
    """`holdout = "west"` as the task of that name; names nearly those of plans are left alone."""
    held = settings.get("holdout")
    if not isinstance(held, str) or difflib.get_close_matches(held, PLANS, n=1):
        return settings
    if settings.get("targets") is not None:
        raise UnseenError(
            f"holdout = {held!r} holds out that domain, and targets says "
            f"{list(settings['targets'])}: leave one of the two out."
        )
    return settings | {"holdout": "leave-one-domain-out", "targets": (held,)}


def _single(kind: str, calls: Sequence[Any]) -> Any:
    if len(calls) != 1:
        raise UnseenError(f"{kind} takes one name; found {len(calls)} joined by +.")
    return calls[0]
