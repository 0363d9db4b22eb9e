"""What keeps a client's data from the others: noise, masks, encryption; and how well it does."""

__all__ = ["accounting", "channel", "ckks", "dp", "kinds", "ledger", "masks"]
