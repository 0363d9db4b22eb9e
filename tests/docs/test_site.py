"""The documentation's site: a place for every public name, nothing from elsewhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools"))

from method_pages import escaped, markdown  # noqa: E402


def test_prose_keeps_its_signs_and_equations_stay_as_they_are() -> None:
    assert escaped("<ĝ_i, g_j> < 0 of `u_i`") == "&lt;ĝ_i, g_j> < 0 of `u_i`"
    assert markdown("Step.\n\n    x ← x_i * u\n\na*b") == "Step.\n\n    x ← x_i * u\n\na\\*b"


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
    assert "ω_T − ω_0" in (tmp_path / "methods" / "ppdg" / "index.html").read_text("utf-8")
    assert "<math" in (tmp_path / "choose" / "index.html").read_text("utf-8")
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
