"""The studies, printed tables and benchmarks of PPDG, CSAC, FedILC and gradient alignment (GA)."""

__all__: list[str] = []
