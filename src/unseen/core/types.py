"""The mappings that travel through a round."""

from collections.abc import Mapping

from torch import Tensor

Inbox = Mapping[str, Tensor]
Memory = Mapping[str, Tensor]
#: One exchange's scalars: name -> [k] or [k, m] float64, participants in roster order.
Table = Mapping[str, Tensor]
