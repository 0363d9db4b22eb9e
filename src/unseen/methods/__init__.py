"""Methods by name, what can be added to them, and expressions such as `fedprox(mu=0.1)+ga`."""

from collections.abc import Callable

from unseen.exchange import Method
from unseen.methods.csac import add_csac, csac
from unseen.methods.fedavg import deepall, fedavg, fedsgd
from unseen.methods.fedcurv import fedcurv
from unseen.methods.fedilc import (
    add_fishr,
    add_geometric,
    fedilc_inter,
    fedilc_intra_arith,
    fedilc_intra_geo,
    fishr,
    geometric,
)
from unseen.methods.fedprox import add_fedprox, fedprox
from unseen.methods.ga import add_ga
from unseen.methods.ppdg import add_ppdg, ppdg
from unseen.methods.surgery import (
    add_agrrand,
    add_agrsum,
    add_pcgrad,
    agrrand,
    agrsum,
    pcgrad,
)

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
}
#: (method, *, options) -> Method, written `+name`.
MODIFIERS: dict[str, Callable[..., Method]] = {
    "ga": add_ga,
    "ppdg": add_ppdg,
    "pcgrad": add_pcgrad,
    "agrsum": add_agrsum,
    "agrrand": add_agrrand,
    "geometric": add_geometric,
    "fishr": add_fishr,
    "csac": add_csac,
    "fedprox": add_fedprox,
}
