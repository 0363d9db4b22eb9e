"""Methods by name, what can be added to them, and expressions such as `fedprox(mu=0.1)+ga`."""

from collections.abc import Callable

from unseen.combine import (
    PPDG,
    AbsoluteGeometricMean,
    AgrRand,
    AgrSum,
    AndMask,
    FedOMG,
    Krum,
    Median,
    PCGrad,
    TrimmedMean,
    WeightedGeometricMean,
)
from unseen.core import Method
from unseen.methods.am import add_am, am
from unseen.methods.arfl import arfl
from unseen.methods.copa import copa
from unseen.methods.csac import add_csac, csac
from unseen.methods.fedavg import deepall, fedavg, fedsgd
from unseen.methods.fedccrl import fedccrl
from unseen.methods.fedcsa import fedcsa
from unseen.methods.fedcurv import fedcurv
from unseen.methods.feddg import feddg
from unseen.methods.fedgala import add_fedgala, fedgala
from unseen.methods.fediir import fediir
from unseen.methods.fedilc import (
    add_fishr,
    fedilc_inter,
    fedilc_intra_arith,
    fedilc_intra_geo,
    fishr,
)
from unseen.methods.fednova import add_fednova, fednova
from unseen.methods.fedprox import add_fedprox, fedprox
from unseen.methods.fedsam import add_fedsam, fedsam
from unseen.methods.ga import add_ga
from unseen.methods.gperxan import gperxan
from unseen.methods.harmofl import harmofl
from unseen.methods.rsc import add_rsc, rsc
from unseen.methods.rules import ServerRule
from unseen.methods.scaffold import scaffold
from unseen.methods.torchjd import add_torchjd, cagrad, mgda, nash_mtl, torchjd, upgrad

__all__ = ["METHODS", "MODIFIERS"]

#: Every method in the order of lists. A server rule is a method and a modifier in one line.
TABLE: dict[str, Callable[..., Method] | ServerRule] = {
    "deepall": deepall,
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "ppdg": ServerRule(PPDG, "tian2023ppdg"),
    "pcgrad": ServerRule(PCGrad, "yu2020pcgrad"),
    "agrsum": ServerRule(AgrSum, "mansilla2021surgery"),
    "agrrand": ServerRule(AgrRand, "mansilla2021surgery"),
    "geometric": ServerRule(
        WeightedGeometricMean, "zhu2022fedilc", fixed={"of": "updates"}, gradients=True
    ),
    "fishr": fishr,
    "fedilc-inter": fedilc_inter,
    "fedilc-intra-arith": fedilc_intra_arith,
    "fedilc-intra-geo": fedilc_intra_geo,
    "fedcurv": fedcurv,
    "csac": csac,
    "scaffold": scaffold,
    "fednova": fednova,
    "fedsam": fedsam,
    "arfl": arfl,
    "fedcsa": fedcsa,
    "andmask": ServerRule(AndMask, "parascandolo2021learning", fixed={"blocks": "tensor"}),
    "geometric-abs": ServerRule(AbsoluteGeometricMean, "parascandolo2021learning", gradients=True),
    "fedomg": ServerRule(FedOMG, "nguyen2025fedomg"),
    "fedgala": fedgala,
    "torchjd": torchjd,
    "mgda": mgda,
    "cagrad": cagrad,
    "upgrad": upgrad,
    "nash-mtl": nash_mtl,
    "trimmed-mean": ServerRule(TrimmedMean, "yin2018byzantine"),
    "median": ServerRule(Median, "yin2018byzantine"),
    "krum": ServerRule(Krum, "blanchard2017krum"),
    "copa": copa,
    "fediir": fediir,
    "gperxan": gperxan,
    "feddg": feddg,
    "am": am,
    "harmofl": harmofl,
    "rsc": rsc,
    "fedccrl": fedccrl,
}
#: (training, *, options) -> Method.
METHODS: dict[str, Callable[..., Method]] = {
    name: part.method(name) if isinstance(part, ServerRule) else part
    for name, part in TABLE.items()
}
#: (method, *, options) -> Method, written `+name`.
MODIFIERS: dict[str, Callable[..., Method]] = {
    "ga": add_ga,
    **{name: part.modifier(name) for name, part in TABLE.items() if isinstance(part, ServerRule)},
    "fedgala": add_fedgala,
    "torchjd": add_torchjd,
    "fishr": add_fishr,
    "csac": add_csac,
    "fedprox": add_fedprox,
    "fednova": add_fednova,
    "fedsam": add_fedsam,
    "am": add_am,
    "rsc": add_rsc,
}
