"""What an evaluation shows: figures with intervals, subgroups, what answers rest on, the page."""

__all__ = ["breakdown", "evaluation_page", "measures"]
