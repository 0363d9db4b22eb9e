"""Methods by name, what can be added to them, and expressions such as `fedprox(mu=0.1)+ga`."""

from collections.abc import Callable

from unseen.core.exchange import Method
from unseen.methods.am import add_am, am
from unseen.methods.andmask import add_andmask, add_geometric_abs, andmask, geometric_abs
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
    add_geometric,
    fedilc_inter,
    fedilc_intra_arith,
    fedilc_intra_geo,
    fishr,
    geometric,
)
from unseen.methods.fednova import add_fednova, fednova
from unseen.methods.fedomg import add_fedomg, fedomg
from unseen.methods.fedprox import add_fedprox, fedprox
from unseen.methods.fedsam import add_fedsam, fedsam
from unseen.methods.ga import add_ga
from unseen.methods.gperxan import gperxan
from unseen.methods.harmofl import harmofl
from unseen.methods.ppdg import add_ppdg, ppdg
from unseen.methods.robust import (
    add_krum,
    add_median,
    add_trimmed_mean,
    krum,
    median,
    trimmed_mean,
)
from unseen.methods.rsc import add_rsc, rsc
from unseen.methods.scaffold import scaffold
from unseen.methods.surgery import (
    add_agrrand,
    add_agrsum,
    add_pcgrad,
    agrrand,
    agrsum,
    pcgrad,
)
from unseen.methods.torchjd import add_torchjd, cagrad, mgda, nash_mtl, torchjd, upgrad

__all__ = ["METHODS", "MODIFIERS"]

#: (training, *, options) -> Method.
METHODS: dict[str, Callable[..., Method]] = {
    "deepall": deepall,
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "ppdg": ppdg,
    "pcgrad": pcgrad,
    "agrsum": agrsum,
    "agrrand": agrrand,
    "geometric": geometric,
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
    "andmask": andmask,
    "geometric-abs": geometric_abs,
    "fedomg": fedomg,
    "fedgala": fedgala,
    "torchjd": torchjd,
    "mgda": mgda,
    "cagrad": cagrad,
    "upgrad": upgrad,
    "nash-mtl": nash_mtl,
    "trimmed-mean": trimmed_mean,
    "median": median,
    "krum": krum,
    "copa": copa,
    "fediir": fediir,
    "gperxan": gperxan,
    "feddg": feddg,
    "am": am,
    "harmofl": harmofl,
    "rsc": rsc,
    "fedccrl": fedccrl,
}
#: (method, *, options) -> Method, written `+name`.
MODIFIERS: dict[str, Callable[..., Method]] = {
    "ga": add_ga,
    "ppdg": add_ppdg,
    "pcgrad": add_pcgrad,
    "agrsum": add_agrsum,
    "agrrand": add_agrrand,
    "geometric": add_geometric,
    "andmask": add_andmask,
    "geometric-abs": add_geometric_abs,
    "fedomg": add_fedomg,
    "fedgala": add_fedgala,
    "torchjd": add_torchjd,
    "trimmed-mean": add_trimmed_mean,
    "median": add_median,
    "krum": add_krum,
    "fishr": add_fishr,
    "csac": add_csac,
    "fedprox": add_fedprox,
    "fednova": add_fednova,
    "fedsam": add_fedsam,
    "am": add_am,
    "rsc": add_rsc,
}
