"""Methods and modifiers in the sections of their index: the four papers, then five families."""

#: Section -> names, in the order of the page. A modifier without a method has its plus.
FAMILIES: dict[str, tuple[str, ...]] = {
    "The four papers": (
        "ppdg", "csac", "geometric", "fishr", "fedilc-inter", "fedilc-intra-arith",
        "fedilc-intra-geo", "+ga",
    ),
    "Base algorithms": (
        "deepall", "fedsgd", "fedavg", "fedprox", "scaffold", "fednova", "feddyn", "fedgloss",
        "fedsam", "fedcurv",
    ),
    "Server rules: weights": (
        "afl", "groupdro", "vrex", "eqrm", "qffl", "arfl", "fedcsa", "random-effects",
    ),
    "Server rules: directions": (
        "pcgrad", "agrsum", "agrrand", "graddrop", "andmask", "sand-mask", "fedgma",
        "geometric-abs", "fedomg", "fedgala", "mgda", "cagrad", "upgrad", "nash-mtl", "torchjd",
    ),
    "Server rules: robust": ("trimmed-mean", "median", "krum", "bounded"),
    "Server steps": ("fedavgm", "fedadam", "fedyogi", "exp", "+compress"),
    "Client parts: loss and gradient": (
        "irm", "sd", "mldg", "coral", "fediir", "+anchor", "+mixup",
    ),
    "Client parts: features": (
        "moon", "fpl", "fedadg", "fedsr", "rsc", "copa", "fedbn", "gperxan", "mixstyle",
        "+shift", "+intercepts",
    ),
    "Client parts: images": ("am", "feddg", "harmofl", "fedccrl", "randconv", "jigen"),
    "Averages, ensembles and exact fits": (
        "+tail", "+swad", "+ema", "+ensemble", "bag", "stack", "portfolio", "glm", "boost",
        "forest", "trees",
    ),
}  # fmt: skip
