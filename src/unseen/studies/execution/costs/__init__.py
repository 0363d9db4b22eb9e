"""What a study will cost, measured on short rounds before it runs, and on its own jobs after."""

__all__ = ["batch_costs", "estimate", "few_rows", "round_costs"]
