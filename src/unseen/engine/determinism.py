"""Computing the same bits again, and in float32 where float32 was asked for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def reproducible(threads: int, device: str) -> Iterator[None]:
    """Fix the number of threads, which changes bits, and choose deterministic kernels.

    Args:
        threads: Of one training step.
        device: Where models compute: off the CPU, kernels are told to be deterministic, and neither
            products nor convolutions are rounded to TF32, which cuDNN does unless told otherwise:
            signs of inner products decide in PPDG.
    """
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    cudnn, cublas = torch.backends.cudnn, torch.backends.cuda.matmul
    switches = cudnn.benchmark, cudnn.allow_tf32, cublas.allow_tf32
    torch.set_num_threads(threads)
    if device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        cudnn.benchmark = cudnn.allow_tf32 = cublas.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        if device != "cpu":  # to ask for it at all imports torch's compilers, for a second
            torch.use_deterministic_algorithms(before[1])
            cudnn.benchmark, cudnn.allow_tf32, cublas.allow_tf32 = switches
