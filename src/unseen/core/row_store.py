"""Memory: what the process does with what it frees, how much there is, and rows on disk."""

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.vector import padded, stack
from unseen.errors import UnseenError

MIB = 2**20
#: Bytes that are taken without a look at what is available, which costs more than small rounds.
SMALL = 16 * MIB
#: glibc's names for its settings (malloc.h).
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8


@cache
def keep_freed_memory() -> bool:
    """Have the C library keep up to 512 MiB of freed memory, and say whether it will.

    Note:
        Every step frees its activations and asks for as many again. glibc hands freed memory back
        to the system, so that each step meets fresh pages, which the system first has to clear: a
        tenth of the time of a small net's step. Threads share one arena, since those of their own
        hand back whatever leaves 64 MiB free, and of the threads here one runs at a time. Whoever
        sets MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ or MALLOC_ARENA_MAX has decided
        otherwise.
    """
    own = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")
    if sys.platform != "linux" or any(name in os.environ for name in own):
        return False
    try:
        setting = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    trims = bool(setting(TRIM_THRESHOLD, 512 * MIB)) and bool(setting(ARENA_MAX, 1))
    # Blocks of this size and more are mapped apart, and always handed back; older glibc allows 32.
    return trims and any(bool(setting(MMAP_THRESHOLD, size * MIB)) for size in (256, 32))


def available() -> int | None:
    """Return the bytes that processes may still take: of the machine, or less by a control group.

    Returns:
        None where the system does not say.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        most = int((group / "memory.max").read_text())
        return min(free * 1024, most - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no such group, or "max"
        return free * 1024


class RowMatrix:
    """A matrix [K, P], in memory or in a file that is mapped into it; bits are the same in both.

    Args:
        count: K.
        like: A vector [P] of the type and on the device of the rows.
        limit: The bytes that the matrix may take in memory; None is half of what is available now,
            which is asked for matrices above 16 MiB alone. Above the limit it lies in a temporary
            file in TMPDIR, which ends with the process: rules read it block by block, and the
            system keeps as much of it in memory as there is room for.
    """

    def __init__(self, count: int, like: Tensor, limit: int | None = None) -> None:
        size, width = like.shape[-1], padded(like.shape[-1])
        needed = count * width * like.element_size()
        if limit is None:
            free = available() if needed > SMALL else None
            limit = needed if free is None else free // 2
        self.file: mmap.mmap | None = None
        if needed <= limit or like.device.type != "cpu" or not needed:
            self.matrix = stack(count, like)
        else:
            self.file = _file(needed)
            self.matrix = torch.frombuffer(self.file, dtype=like.dtype).view(count, width)[:, :size]

    def __len__(self) -> int:
        return len(self.matrix)

    def let_go(self) -> None:
        """Take the file's pages out of this process's memory; what they hold stays."""
        if self.file is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.file.madvise(mmap.MADV_DONTNEED)


def stacked(rows: Sequence[Tensor], memory_limit: int | None = None) -> Tensor:
    """Stack rows [P] into one matrix [K, P]: a view of consecutive rows of one matrix, or a copy.

    Args:
        rows: The rows.
        memory_limit: The bytes that a copy may take in memory.
    """
    first, last = rows[0], rows[-1]
    step = rows[1].storage_offset() - first.storage_offset() if len(rows) > 1 else first.numel()
    # Rows between the first and the last of one storage are of it too.
    consecutive = (
        step >= first.numel() > 0
        and last.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and all(
            row.data_ptr() == first.data_ptr() + i * step * first.element_size()
            and row.is_contiguous()
            for i, row in enumerate(rows)
        )
    )
    if consecutive:
        return first.as_strided((len(rows), first.numel()), (step, 1))
    widest = max(rows, key=lambda row: row.element_size())
    matrix = RowMatrix(len(rows), widest, memory_limit).matrix
    for target, row in zip(matrix, rows, strict=True):
        target.copy_(row)
    return matrix


def _file(size: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile(prefix="unseen-rows-") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # now, rather than a fault in a later round
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise UnseenError(
            f"the clients' rows take {size / MIB:,.0f} MiB, more than there is room for in memory, "
            f"and {tempfile.gettempdir()} cannot hold them either: {error.strerror}.",
            remedy="Set TMPDIR to a folder on a larger disk.",
        ) from None
