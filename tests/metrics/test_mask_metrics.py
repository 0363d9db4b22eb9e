"""Masks: the loss and the metrics, against closed forms, transcriptions and other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import directed_hausdorff
from sklearn.metrics import f1_score, jaccard_score
from torch import Tensor
from torch.nn import functional as F

from unseen.core.labels import IGNORED, kind_of
from unseen.core.losses import CrossEntropyDice
from unseen.core.metrics.evaluation import METRICS, OF_MASKS, accuracy, check_metric, fitting
from unseen.core.metrics.mask_metrics import dice, each_hd95, hausdorff, hd95, iou
from unseen.core.metrics.weighted_metrics import WEIGHTED
from unseen.core.turn import keyed
from unseen.errors import UnseenError


def logits_of(masks: Tensor, classes: int, sure: float = 9.0) -> Tensor:
    """Outputs [N, C, H, W] whose largest is at these classes."""
    return sure * F.one_hot(masks, classes).permute(0, 3, 1, 2).float()


def drawn(N: int = 3, C: int = 3, side: int = 7) -> tuple[Tensor, Tensor]:
    draws = keyed("masks")
    outputs = torch.randn(N, C, side, side, generator=draws, dtype=torch.float64)
    return outputs, torch.randint(C, (N, side, side), generator=draws)


# --- the loss ---------------------------------------------------------------------------------


def transcribed(outputs: Tensor, y: Tensor, smooth: float = 1e-5) -> float:
    """Pixel by pixel, as the equation is printed."""
    N, C, H, W = outputs.shape
    entropy = pixels = 0.0
    both, sizes = [0.0] * C, [0.0] * C
    for i in range(N):
        for u in range(H):
            for v in range(W):
                if (t := int(y[i, u, v])) == IGNORED:
                    continue
                z = [math.exp(float(outputs[i, c, u, v])) for c in range(C)]
                p = [value / sum(z) for value in z]
                entropy, pixels = entropy - math.log(p[t]), pixels + 1
                for c in range(C):
                    both[c] += p[c] * (t == c)
                    sizes[c] += p[c] + (t == c)
    overlap = [(2 * both[c] + smooth) / (sizes[c] + smooth) for c in range(1, C)]
    return entropy / pixels + 1 - sum(overlap) / (C - 1)


def test_the_loss_is_its_equation() -> None:
    outputs, y = drawn()
    y[0, :2], y[2, 5, 5] = IGNORED, IGNORED
    assert float(CrossEntropyDice().value(outputs, y)) == pytest.approx(transcribed(outputs, y))


def test_the_loss_without_an_opinion() -> None:
    """Two classes, p = 1/2, a third of the pixels foreground: log 2 and D = (1/3) / (1/2 + 1/3)."""
    outputs, y = torch.zeros(1, 2, 1, 3), torch.tensor([[[0, 1, 0]]])
    loss = CrossEntropyDice(smooth=0.0)
    assert float(loss.value(outputs, y)) == pytest.approx(math.log(2) + 1 - 0.4)
    only = CrossEntropyDice(entropy=0.0, smooth=0.0)
    assert float(only.value(outputs, y)) == pytest.approx(0.6)


def test_cross_entropy_alone_is_that_of_torch() -> None:
    outputs, y = drawn()
    found = CrossEntropyDice(dice=0.0).value(outputs, y)
    torch.testing.assert_close(found, F.cross_entropy(outputs, y))
    y[1] = IGNORED
    found = CrossEntropyDice(dice=0.0).value(outputs, y)
    torch.testing.assert_close(found, F.cross_entropy(outputs, y, ignore_index=IGNORED))


def test_a_sure_and_right_answer_costs_nothing_and_a_wrong_one_the_whole_of_dice() -> None:
    y = torch.tensor([[[0, 1], [2, 2]]])
    assert float(CrossEntropyDice().value(logits_of(y, 3, 60.0), y)) == pytest.approx(0, abs=1e-4)
    wrong = logits_of((y + 1) % 3, 3, 60.0)
    assert float(CrossEntropyDice(entropy=0.0).value(wrong, y)) == pytest.approx(1, abs=1e-4)


def test_a_class_that_is_nowhere_costs_nothing() -> None:
    y = torch.zeros(1, 4, 4, dtype=torch.int64)
    assert float(CrossEntropyDice().value(logits_of(y, 2, 90.0), y)) == pytest.approx(0, abs=1e-6)


def test_ignored_pixels_have_no_gradient() -> None:
    outputs, y = drawn()
    outputs.requires_grad_(True)
    y[:, 3] = IGNORED
    CrossEntropyDice().value(outputs, y).backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    assert float(outputs.grad[:, :, 3].abs().max()) == 0 < float(outputs.grad.abs().min(0)[0].max())


def test_a_batch_of_ignored_pixels_is_finite() -> None:
    outputs, y = drawn()
    loss = CrossEntropyDice().value(outputs, torch.full_like(y, IGNORED))
    assert math.isfinite(float(loss))


# --- overlap ----------------------------------------------------------------------------------


def test_overlap_is_that_of_scikit_learn() -> None:
    outputs, y = drawn(N=4)
    guess = outputs.argmax(1)
    pairs = [(t.flatten().numpy(), p.flatten().numpy()) for t, p in zip(y, guess, strict=True)]
    options = {"labels": [1, 2], "average": "macro"}
    assert dice(outputs, y) == pytest.approx(
        np.mean([f1_score(*pair, **options) for pair in pairs])
    )
    expected = np.mean([jaccard_score(*pair, **options) for pair in pairs])
    assert iou(outputs, y) == pytest.approx(expected)
    assert accuracy(outputs, y) == pytest.approx(float((guess == y).double().mean()))


def test_overlap_by_hand() -> None:
    """One image: P = {a, b, c}, T = {b, c, d}: Dice 2/3, IoU 2/4; the other finds nothing."""
    y = torch.tensor([[[0, 1, 1, 1]], [[0, 1, 0, 0]]])
    guess = torch.tensor([[[1, 1, 1, 0]], [[0, 0, 0, 0]]])
    outputs = logits_of(guess, 2)
    assert dice(outputs, y) == pytest.approx((2 / 3 + 0) / 2)
    assert iou(outputs, y) == pytest.approx((1 / 2 + 0) / 2)


def test_images_without_foreground() -> None:
    """Nothing there and nothing found: right. A class that neither has is in no mean."""
    nothing = torch.zeros(1, 3, 3, dtype=torch.int64)
    assert dice(logits_of(nothing, 2), nothing) == iou(logits_of(nothing, 2), nothing) == 1
    assert hd95(logits_of(nothing, 2), nothing) == 0
    one = nothing.clone()
    one[0, 1, 1] = 1
    assert dice(logits_of(one, 2), nothing) == iou(logits_of(one, 2), nothing) == 0
    assert hd95(logits_of(one, 2), nothing) == hd95(logits_of(nothing, 2), one) == math.hypot(2, 2)
    assert dice(logits_of(one, 4), one) == 1  # classes 2 and 3 are nowhere
    assert hd95(logits_of(one, 4), one) == 0


def test_ignored_pixels_count_in_no_metric() -> None:
    y = torch.tensor([[[1, 1, 0, 0]]])
    outputs = logits_of(torch.tensor([[[1, 1, 1, 1]]]), 2)
    assert dice(outputs, y) == pytest.approx(2 / 3)
    y[0, 0, 2:] = IGNORED
    assert dice(outputs, y) == iou(outputs, y) == accuracy(outputs, y) == 1
    assert hd95(outputs, y) == 0


# --- distances --------------------------------------------------------------------------------


def borders(mask: np.ndarray) -> np.ndarray:
    """The pixels of a mask with a neighbour outside of it, by looking at each."""
    padded, places = np.pad(mask, 1), []
    for u, v in np.argwhere(mask):
        near = padded[u, v + 1], padded[u + 2, v + 1], padded[u + 1, v], padded[u + 1, v + 2]
        places += [] if all(near) else [(u, v)]
    return np.array(places)


@pytest.mark.parametrize("seed", range(5))
def test_hausdorff_distances_are_those_of_scipy(seed: int) -> None:
    draws = np.random.default_rng(seed)
    a, b = (draws.random((2, 12, 15)) < 0.3).astype(bool)
    a[2:9, 3:8] = True
    first, second = borders(a), borders(b)
    whole = max(directed_hausdorff(first, second)[0], directed_hausdorff(second, first)[0])
    assert hausdorff(a, b) == pytest.approx(whole)
    pairs = np.linalg.norm(first[:, None] - second[None], axis=2)
    there, back = pairs.min(1), pairs.min(0)
    expected = max(np.percentile(there, 95), np.percentile(back, 95))
    assert hausdorff(a, b, 95) == pytest.approx(expected)
    assert hausdorff(a, b, 95) == hausdorff(b, a, 95)


def test_distances_by_hand() -> None:
    """Bars of one row: P = columns 0 to 20, T = columns 0 to 10; a distance for each of P's."""
    a, b = np.zeros((2, 1, 30), bool)
    a[0, :21] = b[0, :11] = True
    assert hausdorff(a, b) == 10
    assert hausdorff(a, b, 95) == pytest.approx(9)  # of 21 distances 0 ... 0, 1, ..., 10
    guess = torch.from_numpy(a.astype(np.int64))[None]
    truth = torch.from_numpy(b.astype(np.int64))[None]
    assert hd95(logits_of(guess, 2), truth) == pytest.approx(9)
    both = torch.cat([guess, truth])
    each = each_hd95(logits_of(both, 2), torch.cat([truth, truth]))
    assert each.tolist() == pytest.approx([9, 0])
    nothing = torch.zeros_like(truth)  # one mask alone: as far as the two outermost pixels' centres
    assert hd95(logits_of(nothing, 2), truth) == pytest.approx(29)


# --- the metric system ------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(OF_MASKS))
def test_metrics_with_equal_weights_are_the_metrics(name: str) -> None:
    outputs, y = drawn(N=6)
    y[0, :2], y[1, 3, 3] = IGNORED, IGNORED
    weights = torch.tensor([[1.0] * 6, [2, 0, 0, 0, 0, 4], [0, 1, 1, 1, 1, 0]]).double()
    found = WEIGHTED[name](outputs, y)(weights)
    rows = [torch.arange(6), torch.tensor([0, 0, 5, 5, 5, 5]), torch.tensor([1, 2, 3, 4])]
    expected = [METRICS[name](outputs[index], y[index]) for index in rows]
    assert found.tolist() == pytest.approx(expected)


def test_metrics_belong_to_kinds_of_labels() -> None:
    assert set(fitting(2, masks=True)) == OF_MASKS == set(fitting(5, masks=True))
    assert not {"dice", "iou", "hd95"} & {*fitting(2), *fitting(None)}
    check_metric("dice", 2, masks=True)
    for name, masks in (("auroc", True), ("rmse", True), ("f1-macro", True), ("dice", False)):
        with pytest.raises(UnseenError, match="is not for labels that are"):
            check_metric(name, 2, masks)


def test_kinds() -> None:
    assert [kind_of(*x) for x in ((None, False), (2, False), (2, True))] == [
        "numbers", "classes", "masks",
    ]  # fmt: skip


def test_masks_without_a_pixel_that_counts_have_no_accuracy() -> None:
    outputs, y = drawn()
    assert accuracy(outputs, torch.full_like(y, IGNORED)) is None
    assert accuracy(outputs[:0], y[:0]) is None
