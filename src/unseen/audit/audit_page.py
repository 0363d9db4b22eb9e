"""The audit's files: audit.json, audit.md and the pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.audit.pictures import sheet, to_svg
from unseen.core.atomic import write_atomically

Found = Mapping[str, Any]


def write(found: Found, images: Mapping[str, Tensor], out: Path) -> list[Path]:
    """Write all files; their paths."""
    drawn = all(t.ndim == 4 for t in images.values())
    files = {"audit.json": (json.dumps(found, indent=1, allow_nan=False) + "\n").encode()}
    files["audit.md"] = "\n".join(page(found, drawn)).encode()
    if drawn:
        notes = {
            a["what"]: f"{a['psnr']:.1f} dB" for a in found["inversion"]["attacks"] if "psnr" in a
        }
        files["inversion.png"] = sheet(images)
        files["inversion.svg"] = to_svg(images, notes).encode()
    for name, content in files.items():
        write_atomically(out / name, content)
    return [out / name for name in files]


def page(found: Found, drawn: bool) -> Iterator[str]:
    """The findings as Markdown, in plain words."""
    what = found["what"]
    yield f"# Audit of {what['study']}"
    yield ""
    sites = ", ".join(f"{s} ({n})" for s, n in zip(what["sites"], what["examples"], strict=True))
    yield (
        f"{what['method']} on {what['data']}, model {what['model']}, {what['rounds']} rounds, seed "
        f"{what['seed']}; target {what['task']}; sites, with their training examples: {sites}. "
        f"Privacy set in the study: {_settings(what['privacy'])}. Made by `unseen audit` in "
        f"{what['seconds']} s."
    )
    yield ""
    yield (
        "Every figure is the outcome of an attack that was run. An attack that fails proves "
        "nothing: another may succeed. One that succeeds is a leak."
    )
    yield from _inversion(found["inversion"], drawn)
    yield from _membership(found["membership"])
    if found["gram"]:
        yield from _gram(found["gram"])
    yield from _shared(found["shared"])


def _settings(privacy: Found) -> str:
    return ", ".join(f"{k} = {v}" for k, v in privacy.items()) or "none"


def _inversion(found: Found, drawn: bool) -> Iterator[str]:
    noun = found["noun"]
    yield from (
        "",
        f"## {noun.title()}s out of updates",
        "",
        f"The site {found['site']} sends the gradient of a single {noun}. The attacker knows the "
        f"model, the method, mean and deviation of such {noun}s from the site "
        f"{found['prior_from']} and, where there is noise, how much. Recovered: more than "
        f"{found['enough']:g} dB.",
        "",
        "| what the server holds | ε of this one reply | PSNR, dB | 95 % | recovered |",
        "| :-- | --: | --: | :-: | --: |",
    )
    for a in found["attacks"]:
        if "left_out" in a:
            continue
        low, high = a["interval"]
        epsilon = a.get("epsilon")
        shown = "" if epsilon is None else f"{epsilon:,.4g}"
        held = a["held"] if a["what"] in a["held"] else f"{a['what']}: {a['held']}"
        yield (
            f"| {held} | {shown} | {a['psnr']:.1f} | {low:.1f} to {high:.1f} | "
            f"{a['recovered']} of {a['of']} |"
        )
    yield ""
    random = found["random_images"]
    yield (
        f"A random {noun} with the same mean and deviation of every number comes to "
        f"{random['psnr']:.1f} dB on average over {random['draws']} draws."
    )
    for name, gain in found["against_random"].items():
        low, high = gain["interval"]
        verdict = "no better than" if gain["no_better"] else "better than"
        yield (
            f"What the attack makes of the {name} bytes is {verdict} such a random {noun}: "
            f"{gain['gain']:+.2f} dB on the same {noun}s, 95 % {low:+.2f} to {high:+.2f}."
        )
    for a in found["attacks"]:
        if "left_out" in a:
            yield ""
            yield f"Not attacked: {a['what']}, since {a['left_out']}"
    if drawn:
        yield from ("", "![Images by attack](inversion.png)")
    if "batches" in found:
        yield from _batches(found["batches"], noun)


def _batches(rows: list[Found], noun: str) -> Iterator[str]:
    yield from (
        "",
        f"### {noun.title()}s out of sums",
        "",
        "Sums over examples hide single ones only so far: a unit of the first layer that "
        "answers to one example alone shows it. The attacker divides the layer's update unit by "
        "unit and looks at every result. This is what is left to whoever sees sums in the clear: "
        "a plain server of larger batches, or who opens the sum of a masked or an encrypted round.",
        "",
        "| what is summed | examples | results looked at | PSNR of the nearest, dB | "
        "of random ones | recovered |",
        "| :-- | --: | --: | --: | --: | --: |",
    )
    for r in rows:
        yield (
            f"| {r['what']} | {r['examples']} | {r['candidates']} | {r['psnr']:.1f} | "
            f"{r['psnr_of_random']:.1f} | {r['recovered']} |"
        )


def _membership(found: Found) -> Iterator[str]:
    yield from (
        "",
        "## Who was in the training data",
        "",
        "| attack on the final model | AUC | 95 % | found at 1 % false accusations | "
        "members / others |",
        "| :-- | --: | :-: | --: | --: |",
    )
    names = {
        "by_loss": "loss threshold",
        "by_shadows": f"likelihood ratio, {found.get('by_shadows', {}).get('models', 0)} models",
    }
    for key, name in names.items():
        if key in found:
            m = found[key]
            low, high = m["interval"]
            yield (
                f"| {name} | {m['auc']:.3f} | {low:.3f} to {high:.3f} | "
                f"{100 * m['rate_at_1_percent']:.1f} % | {m['members']} / {m['others']} |"
            )
    yield ""
    yield (
        "0.5 is a coin. The threshold is tried on the model trained on everything, against "
        "validation examples of the same sites; the likelihood ratio on models each trained on "
        "half of every site's examples, each in its turn with all others as shadows."
    )


def _gram(found: Found) -> Iterator[str]:
    yield from ("", "## What the inner products say", "")
    yield (
        "Whoever holds the K × K matrix, decrypted or not, without any update, holds "
        f"{found['numbers_per_round']} numbers a round ({found['rounds']} rounds here) and reads:"
    )
    yield ""
    norms = ", ".join(f"{s} {n:.3g}" for s, n in zip(found["sites"], found["norms"], strict=True))
    yield f"- how far each site moves the model, on average: {norms};"
    if found.get("norm_and_loss") is not None:
        yield (
            "- how badly the model fits a site: norms and training losses of a round have the "
            f"mean rank correlation {found['norm_and_loss']:+.2f};"
        )
    if found["most_alike"]:
        high, a, b = found["most_alike"]
        low, c, d = found["least_alike"]
        yield (
            f"- who is alike: {a} and {b} (cosine {high:.2f}), and who is not: {c} and {d} "
            f"({low:.2f});"
        )
    yield (
        f"- who is the outlier: {found['outlier']}; the same site stands farthest from the rest in "
        f"{100 * found['outlier_each_round']:.0f} % of the rounds"
        + ("." if found.get("order") is None else ";")
    )
    if found.get("order") is not None:
        yield (
            "- what the sites differ in: the largest axis of their geometry sorts them by the "
            f"number in their names with a rank correlation of {found['order']:.2f}."
        )
    yield ""
    yield "Mean cosines:"
    yield ""
    yield "| | " + " | ".join(found["sites"]) + " |"
    yield "| :-- |" + " --: |" * len(found["sites"])
    for site, row in zip(found["sites"], found["cosines"], strict=True):
        yield f"| {site} | " + " | ".join(f"{value:.2f}" for value in row) + " |"


def _shared(found: Found) -> Iterator[str]:
    yield from ("", "## What methods share beyond the model", "")
    if "banks" in found:
        yield from _banks(found["banks"])
    if "class_counts" in found:
        c = found["class_counts"]
        yield (
            "Class counts. FedCSA sends them, so nothing need be guessed. Where they are not sent, "
            "one plain gradient of a site tells them: guessed from it, "
            f"{100 * c['misplaced_share']:.1f} % of a site's examples are laid to a wrong class, "
            f"by the guess that all classes are alike {100 * c['misplaced_by_uniform_guess']:.1f} "
            f"% (means over {c['sites']} sites)."
        )
        yield ""
    gaps = found.get("gaps")
    if gaps and "left_out" not in gaps:
        each = ", ".join(f"{s} {g:+.3g}" for s, g in zip(gaps["sites"], gaps["mean_gaps"],
                                                          strict=True))  # fmt: skip
        relation = (
            f" Gaps and training losses of a round have the rank correlation "
            f"{gaps['gap_and_loss']:+.2f}."
            if gaps["gap_and_loss"] is not None
            else ""
        )
        yield (
            f"Gaps. GA's one number a round tells whom the model serves worst: mean gaps {each}; "
            f"the largest is that of {gaps['largest_gap']} in {100 * gaps['steadiness']:.0f} % of "
            f"{gaps['rounds']} rounds.{relation}"
        )
        yield ""
    heads = found.get("heads")
    if heads and "left_out" not in heads:
        yield (
            "Heads. Of COPA's heads, which every site receives, one fits a site's own examples "
            "best: the site is guessed right for "
            f"{100 * heads['site_guessed_train']:.0f} % of the training examples and for "
            f"{100 * heads['site_guessed_validation']:.0f} % of examples that nobody trained on; "
            f"by chance {100 * heads['by_chance']:.0f} %."
        )
        yield ""
    for name in ("gaps", "heads"):
        if found.get(name) and "left_out" in found[name]:
            yield f"Not attacked: {name}, since {found[name]['left_out']}"
            yield ""


def _banks(rows: list[Found]) -> Iterator[str]:
    copies = list(rows[0]["membership"])
    yield (
        f"Banks. {rows[0]['images']} images of a site are described to everybody. Is a given image "
        "among them? AUC, by what the attacker has of it; and how often the class of a described "
        "image is guessed, by the five nearest of other sites' images."
    )
    yield ""
    yield (
        "| what is shared of an image | numbers | " + " | ".join(copies) + " | class guessed | "
        "by chance |"
    )
    yield "| :-- | --: |" + " :-- |" * len(copies) + " --: | --: |"
    for r in rows:
        cells = [
            f"{m['auc']:.2f} ({m['interval'][0]:.2f} to {m['interval'][1]:.2f})"
            for m in r["membership"].values()
        ]
        yield (
            f"| {r['what']}, `{r['method']}` | {r['numbers_per_image']} | "
            + " | ".join(cells)
            + f" | {100 * r['class_guessed']:.0f} % | {100 * r['class_by_chance']:.0f} % |"
        )
    yield ""
