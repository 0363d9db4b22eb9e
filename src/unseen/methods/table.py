"""Methods and modifiers by name, each in a line."""

from collections.abc import Callable

from unseen.core import Method
from unseen.methods import combine
from unseen.methods.am import add_am
from unseen.methods.anchor import add_anchor
from unseen.methods.arfl import arfl
from unseen.methods.average import add_ema, add_tail
from unseen.methods.boost import boost
from unseen.methods.compress import add_compress
from unseen.methods.copa import copa
from unseen.methods.coral import add_coral
from unseen.methods.csac import add_csac, csac
from unseen.methods.ensemble import add_ensemble
from unseen.methods.fedadg import add_fedadg
from unseen.methods.fedavg import deepall, fedavg, fedsgd
from unseen.methods.fedbn import fedbn
from unseen.methods.fedccrl import fedccrl
from unseen.methods.fedcsa import fedcsa
from unseen.methods.fedcurv import fedcurv
from unseen.methods.feddg import feddg
from unseen.methods.feddyn import feddyn
from unseen.methods.fedgala import add_fedgala, fedgala
from unseen.methods.fedgloss import fedgloss
from unseen.methods.fediir import fediir
from unseen.methods.fedilc import (
    add_fishr,
    fedilc_inter,
    fedilc_intra_arith,
    fedilc_intra_geo,
    fishr,
)
from unseen.methods.fednova import add_fednova
from unseen.methods.fedprox import add_fedprox
from unseen.methods.fedsam import add_fedsam
from unseen.methods.fedsr import fedsr
from unseen.methods.forest import forest
from unseen.methods.fpl import add_fpl
from unseen.methods.ga import add_ga
from unseen.methods.glm import glm
from unseen.methods.gperxan import gperxan
from unseen.methods.harmofl import harmofl
from unseen.methods.intercepts import add_intercepts
from unseen.methods.jigen import add_jigen
from unseen.methods.mixstyle import add_mixstyle
from unseen.methods.mixup import add_mixup
from unseen.methods.mldg import mldg
from unseen.methods.moon import add_moon
from unseen.methods.penalties import add_irm, add_sd
from unseen.methods.pooled_trees import trees
from unseen.methods.qffl import add_qffl
from unseen.methods.randconv import add_randconv
from unseen.methods.rsc import add_rsc
from unseen.methods.rules import ClientPart, ServerRule
from unseen.methods.scaffold import scaffold
from unseen.methods.server_steps import add_fedadam, add_fedavgm, add_fedyogi
from unseen.methods.shift import add_shift
from unseen.methods.swad import add_swad
from unseen.methods.torchjd import add_torchjd, cagrad, mgda, nash_mtl, torchjd, upgrad

#: Every method in the order of lists. A part is a method and a modifier in one line.
TABLE: dict[str, Callable[..., Method] | ServerRule | ClientPart] = {
    "deepall": deepall,
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedprox": ClientPart(add_fedprox),
    "fedavgm": ClientPart(add_fedavgm),
    "fedadam": ClientPart(add_fedadam),
    "fedyogi": ClientPart(add_fedyogi),
    "ppdg": ServerRule(combine.PPDG, "tian2023ppdg"),
    "pcgrad": ServerRule(combine.PCGrad, "yu2020pcgrad"),
    "agrsum": ServerRule(combine.AgrSum, "mansilla2021surgery"),
    "agrrand": ServerRule(combine.AgrRand, "mansilla2021surgery"),
    "graddrop": ServerRule(combine.GradDrop, "chen2020graddrop"),
    "geometric": ServerRule(
        combine.WeightedGeometricMean, "zhu2022fedilc", fixed={"of": "updates"}, gradients=True
    ),
    "fishr": fishr,
    "fedilc-inter": fedilc_inter,
    "fedilc-intra-arith": fedilc_intra_arith,
    "fedilc-intra-geo": fedilc_intra_geo,
    "coral": ClientPart(add_coral, "uniform", gradients=True),
    "fedcurv": fedcurv,
    "csac": csac,
    "scaffold": scaffold,
    "fednova": ClientPart(add_fednova),
    "fedsam": ClientPart(add_fedsam),
    "feddyn": feddyn,
    "fedgloss": fedgloss,
    "moon": ClientPart(add_moon),
    "irm": ClientPart(add_irm, "uniform"),
    "sd": ClientPart(add_sd),
    "mldg": mldg,
    "fedbn": fedbn,
    "fedsr": fedsr,
    "fpl": ClientPart(add_fpl),
    "fedadg": ClientPart(add_fedadg, "uniform"),
    "arfl": arfl,
    "fedcsa": fedcsa,
    "afl": ServerRule(combine.Agnostic, "mohri2019agnostic", losses=True),
    "groupdro": ServerRule(combine.GroupDRO, "sagawa2020groupdro", losses=True),
    "vrex": ServerRule(combine.VarianceOfRisks, "krueger2021vrex", losses=True),
    "eqrm": ServerRule(combine.QuantileOfRisks, "eastwood2022eqrm", losses=True),
    "qffl": ClientPart(add_qffl),
    "andmask": ServerRule(combine.AndMask, "parascandolo2021learning", fixed={"blocks": "tensor"}),
    "sand-mask": ServerRule(combine.SandMask, "shahtalebi2021sandmask", fixed={"blocks": "tensor"}),
    "fedgma": ServerRule(combine.GradientMasked, "tenison2023gradient"),
    "geometric-abs": ServerRule(
        combine.AbsoluteGeometricMean, "parascandolo2021learning", gradients=True
    ),
    "fedomg": ServerRule(combine.FedOMG, "nguyen2025fedomg"),
    "fedgala": fedgala,
    "torchjd": torchjd,
    "mgda": mgda,
    "cagrad": cagrad,
    "upgrad": upgrad,
    "nash-mtl": nash_mtl,
    "trimmed-mean": ServerRule(combine.TrimmedMean, "yin2018byzantine"),
    "median": ServerRule(combine.Median, "yin2018byzantine"),
    "krum": ServerRule(combine.Krum, "blanchard2017krum"),
    "bounded": ServerRule(combine.NormBound, "sun2019backdoor"),
    "exp": ServerRule(combine.FedExP, "jhunjhunwala2023fedexp"),
    "random-effects": ServerRule(combine.RandomEffects, "dersimonian1986meta"),
    "copa": copa,
    "fediir": fediir,
    "gperxan": gperxan,
    "feddg": feddg,
    "am": ClientPart(add_am),
    "harmofl": harmofl,
    "rsc": ClientPart(add_rsc),
    "fedccrl": fedccrl,
    "mixstyle": ClientPart(add_mixstyle),
    "randconv": ClientPart(add_randconv),
    "jigen": ClientPart(add_jigen),
    "glm": glm,
    "boost": boost,
    "forest": forest,
    "trees": trees,
}
#: (training, *, options) -> Method.
METHODS: dict[str, Callable[..., Method]] = {
    name: part.method(name) if isinstance(part, ServerRule | ClientPart) else part
    for name, part in TABLE.items()
}
#: (method, *, options) -> Method, written `+name`.
MODIFIERS: dict[str, Callable[..., Method]] = {
    "ga": add_ga,
    **{
        name: part.modifier(name)
        for name, part in TABLE.items()
        if isinstance(part, ServerRule | ClientPart)
    },
    "fedgala": add_fedgala,
    "torchjd": add_torchjd,
    "fishr": add_fishr,
    "csac": add_csac,
    "mixup": add_mixup,
    "anchor": add_anchor,
    "shift": add_shift,
    "intercepts": add_intercepts,
    "tail": add_tail,
    "swad": add_swad,
    "ema": add_ema,
    "compress": add_compress,
    "ensemble": add_ensemble,
}
