"""The documentation's site: equations, a place for every public name, nothing from elsewhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unseen.cli.equations import display, inline, latex, markdown

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools"))


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        ("p_i = n_i / Σ_j n_j", r"p_{i} = n_{i} / \sum_{j} n_{j}"),
        ("‖w − x‖²", r"\Vert w - x\Vert^{2}"),
        ("<ĝ_i, g_j> < 0", r"\langle \hat{g}_{i}, g_{j}\rangle < 0"),
        ("Σ_{j≠i} (w − w_j)ᵀ w", r"\sum_{j\neq i} (w - w_{j})^{\top} w"),
        ("e^{i arg F(x)}", r"e^{i\, \mathrm{arg}\, F(x)}"),
        ("v / (√v + τ₀)", r"v / (\sqrt{v} + \tau_{0})"),
        ("α_i² ≥ 2⁻³⁰", r"\alpha_{i}^{2} \ge 2^{-30}"),
        ("0 where A < `cut`", r"0 \text{ where }A < \texttt{cut}"),
        ("L_i^(q−1)", "L_{i}^{q-1}"),
    ],
)
def test_an_equation_in_tex(text: str, tex: str) -> None:
    assert latex(text) == tex


def test_prose_keeps_its_words_and_its_code() -> None:
    assert inline("The mean, of `u_i` and/or a client.") == "The mean, of `u_i` and/or a client."
    assert inline("u_i is client i's, 0 at first") == "$u_{i}$ is client $i$'s, 0 at first"
    assert inline("40 (so rounds = 41)") == "40 (so rounds = 41)"
    text = markdown("Step.\n\n    x ← x + u\n    y ← x\n\nx: a model.")
    block = "```math\n\\begin{aligned}\n& x \\leftarrow x + u \\\\\n& y \\leftarrow x\n"
    assert text == f"Step.\n\n{block}\\end{{aligned}}\n```\n\n$x$: a model."
    assert display("    raw:  x ← u   line 6\n").count("&") == 1


def test_every_formula_of_the_methods_can_be_drawn() -> None:
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    hooks = importlib.import_module("site_hooks")
    count = 0
    for page in (DOCS / "methods").glob("*.md"):
        text = page.read_text("utf-8")
        blocks = re.findall(r"```math\n(.*?)\n```", text, re.DOTALL)
        prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
        assert prose.count("$") % 2 == 0, page.name
        for tex in [*blocks, *re.findall(r"\$(.+?)\$", prose)]:
            assert "<math" in hooks.mathml(tex, False)
            count += 1
    assert count > 500


def test_every_package_has_a_page_of_the_reference() -> None:
    architecture = importlib.import_module("architecture")
    for name in architecture.LAYERS:
        if (architecture.SOURCE / name / "__init__.py").exists() and name != "cli":
            assert f"::: unseen.{name}\n" in (DOCS / "reference" / f"{name}.md").read_text("utf-8")


@pytest.mark.slow
def test_the_site_is_built_strictly_and_asks_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    place = ["--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(tmp_path)]
    ran = subprocess.run([*command, *place], capture_output=True, text=True, env=env, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 150
    for page in pages:
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"?(https?://[^\s\">]*)",
                            page.read_text("utf-8"))  # fmt: skip
        assert not loaded, page
    assert "<math" in (tmp_path / "methods" / "ppdg" / "index.html").read_text("utf-8")
    assert "<svg" in (tmp_path / "report" / "index.html").read_text("utf-8")
    hooks = importlib.import_module("site_hooks")
    plugin_error = importlib.import_module("mkdocs.exceptions").PluginError
    config = type("Config", (), {"site_dir": str(tmp_path)})
    hooks.on_post_build(config)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(plugin_error, match=r"unseen\.nobody"),
    ):
        patch.setattr(hooks, "public_names", lambda: {"unseen.nobody"})
        hooks.on_post_build(config)
