"""What a study's process is told before it computes."""

import torch

from unseen.engine.determinism import reproducible


def switches() -> tuple[bool, ...]:
    cudnn, cublas = torch.backends.cudnn, torch.backends.cuda.matmul
    return cudnn.benchmark, cudnn.allow_tf32, cublas.allow_tf32


def test_off_the_cpu_float32_is_float32_and_the_switches_come_back() -> None:
    """cuDNN's convolutions round to TF32 by torch's default; a probe of a sign must not."""
    before = switches()
    assert before[1], "torch's default has changed: the test would not see TF32 being refused"
    with reproducible(1, "cuda"):
        assert switches() == (False, False, False)
        assert torch.are_deterministic_algorithms_enabled()
    assert switches() == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_on_the_cpu_nothing_of_this_is_touched() -> None:
    before = switches()
    with reproducible(1, "cpu"):
        assert switches() == before
