"""Every finding of the doctor, provoked once."""

from __future__ import annotations

import json
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="keys need the extra flower")

from support.kits import answering, provisioned, site
from support.sketches import SKETCHES
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen.sites.doctor import Finding, examine
from unseen.sites.kits.kit import Kit
from unseen.sites.probe import versions


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return provisioned(tmp_path / "kits")


def faults(kit: Kit, **options: Any) -> dict[str, Finding]:
    """What is wrong, by name; every fault has a remedy."""
    found = [f for f in examine(kit, **options) if f.state == "fault"]
    assert all(f.remedy for f in found), found
    return {f.what: f for f in found}


def warnings(kit: Kit, **options: Any) -> dict[str, Finding]:
    return {f.what: f for f in examine(kit, **options) if f.state == "warning"}


def test_nothing_is_wrong_with_fresh_kits(out: Path) -> None:
    assert faults(Kit.read(out / "server")) == {}
    with answering(out / "server", site(out).port):
        assert faults(site(out)) == {}
        shown = CliRunner().invoke(app, ["federation", "doctor", str(out / "north")])
    assert shown.exit_code == 0 and "nothing is wrong" in shown.output
    kinds = ("files", "permissions", "certificate", "keys", "disk", "name", "port", "clock",
             "registration", "versions", "message size", "data")  # fmt: skip
    assert all(f" {kind}: " in shown.output for kind in kinds), shown.output


def test_a_missing_file(out: Path) -> None:
    (out / "north" / "ca.crt").unlink()
    assert "ca.crt is missing" in faults(site(out))["files"].text
    (out / "server" / "server.key").unlink()
    assert "server.key is missing" in faults(Kit.read(out / "server"))["files"].text


def test_a_key_of_another_machine(out: Path) -> None:
    (out / "server" / "ckks.secret").write_bytes(b"x")
    (out / "server" / "ckks.secret").chmod(0o600)
    assert "does not belong" in faults(Kit.read(out / "server"))["keys"].text


def test_a_private_key_that_others_can_read(out: Path) -> None:
    (out / "north" / "site.key").chmod(0o640)
    found = faults(site(out))["permissions"]
    assert "mode 0640" in found.text and found.remedy == f"chmod 600 {out}/north/site.key"


def test_a_kit_that_others_can_look_into(out: Path) -> None:
    (out / "north").chmod(0o755)
    assert "mode 0755" in warnings(site(out))["permissions"].text


def test_keys_that_are_no_pair(out: Path) -> None:
    (out / "north" / "site.pub").write_bytes((out / "south" / "site.pub").read_bytes())
    assert "not of one pair" in faults(site(out))["keys"].text


def test_the_keys_of_another_site(out: Path) -> None:
    """A pair that fits, whose name is behind its public half."""
    for name in ("site.key", "site.pub"):
        content = (out / "south" / name).read_bytes()
        (out / "north" / name).write_bytes(content)
    found = faults(site(out))["keys"]
    assert found.text == "site.pub is the key of 'south', and this is the kit of 'north'"
    assert "kit of north" in found.remedy
    with pytest.raises(UnseenError, match="is the key of 'south'"):
        site(out).check()
    # Without a name there the server says whose key it is.
    public = out / "north" / "site.pub"
    public.write_bytes(b" ".join(public.read_bytes().split()[:2]) + b"\n")
    with answering(out / "server", site(out).port, name="south"):
        assert "as south's" in faults(site(out))["registration"].text
    with answering(out / "server", site(out).port, name="north"):
        assert faults(site(out)) == {}


def test_the_masks_of_another_site(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits", masks=True)
    assert "keys" not in faults(site(out))
    private = out / "north" / "masks.private"
    private.write_bytes((out / "south" / "masks.private").read_bytes())
    assert "not the one of 'north'" in faults(site(out))["keys"].text
    private.write_bytes(b"nonsense")
    assert "not the one of 'north'" in faults(site(out))["keys"].text


def test_an_unreadable_key(out: Path) -> None:
    (out / "north" / "site.key").write_text("nonsense")
    assert "cannot be read" in faults(site(out))["keys"].text


def test_an_expired_certificate(out: Path) -> None:
    later = datetime.now(UTC) + timedelta(days=400)
    found = faults(Kit.read(out / "server"), now=later)["certificate"]
    assert "expired: server.crt" in found.text and "--renew server" in found.remedy


def test_a_certificate_that_has_not_begun(out: Path) -> None:
    found = faults(Kit.read(out / "server"), now=datetime.now(UTC) - timedelta(days=2))
    assert "not valid yet" in found["certificate"].text
    assert found["certificate"].remedy == "Set the clock."


def test_a_certificate_that_ends_soon(out: Path) -> None:
    soon = datetime.now(UTC) + timedelta(days=350)
    assert "server.crt ends on" in warnings(Kit.read(out / "server"), now=soon)["certificate"].text


def test_a_certificate_of_another_authority(out: Path, tmp_path: Path) -> None:
    other = provisioned(tmp_path / "other")
    (out / "server" / "ca.crt").write_bytes((other / "server" / "ca.crt").read_bytes())
    assert "not signed by ca.crt" in faults(Kit.read(out / "server"))["certificate"].text


def test_a_name_that_the_certificate_lacks(out: Path) -> None:
    settings = out / "server" / "kit.toml"
    settings.write_text(settings.read_text().replace('"127.0.0.1"]', '"fed.example.org"]'))
    assert "not for fed.example.org" in faults(Kit.read(out / "server"))["names"].text


def test_no_site_is_let_in(out: Path) -> None:
    for path in (out / "server" / "sites").iterdir():
        path.unlink()
    assert "no public key" in faults(Kit.read(out / "server"))["sites"].text


def test_a_name_that_nobody_knows(out: Path) -> None:
    settings = out / "north" / "kit.toml"
    settings.write_text(settings.read_text().replace("localhost", "no-such-host.invalid"))
    assert "not known here" in faults(site(out))["name"].text


def test_a_server_that_is_silent_leaves_the_rest(out: Path) -> None:
    begun = time.monotonic()
    found = examine(site(out))
    assert time.monotonic() - begun < 15
    assert {f.what for f in found if f.state == "fault"} == {"port"}
    assert {"files", "permissions", "certificate", "keys"} <= {
        f.what for f in found if f.state == "ok"
    }
    assert any(f.state == "skipped" and "versions" in f.text for f in found)


def test_a_port_that_is_taken(out: Path) -> None:
    server = Kit.read(out / "server")
    with socket.socket() as other:
        other.bind(("127.0.0.1", server.port))  # bound, and nobody listens
        assert "port taken" in faults(server)["port"].text


def test_another_service_on_the_port(out: Path) -> None:
    with answering(out / "server", site(out).port, plain=True):
        assert "plaintext" in faults(site(out))["port"].text
    with answering(out / "server", site(out).port, time="no number"):
        assert "not an unseen federation server" in faults(site(out))["port"].text


def test_a_server_of_another_authority(out: Path, tmp_path: Path) -> None:
    other = provisioned(tmp_path / "other", port=site(out).port)
    with answering(other / "server", site(out).port):
        assert "wrong certificate authority" in faults(site(out))["certificate"].text


@pytest.mark.parametrize(("ahead", "state"), [(4, 0), (8, 1), (-290, 0), (-320, 1)])
def test_the_clock(out: Path, ahead: float, state: int) -> None:
    with answering(out / "server", site(out).port, time=time.time() - ahead):
        found = faults(site(out))
    assert len(found) == state and ("clock" in found) == bool(state)


def test_a_key_that_the_server_does_not_know(out: Path) -> None:
    with answering(out / "server", site(out).port, registered=False):
        assert "does not know the key of north" in faults(site(out))["registration"].text


def test_other_versions(out: Path) -> None:
    with answering(out / "server", site(out).port, flower="1.30.2"):
        found = faults(site(out))["versions"]
    assert "1.30.2 there" in found.text and "flwr==1.30.2" in found.remedy
    with answering(out / "server", site(out).port, unseen="0.0.1"):
        found = faults(site(out))["versions"]
    assert "unseen 0.0.1 here: from a checkout" in found.remedy  # no index has it


@pytest.mark.parametrize(("own", "flower", "wrong"), [(0, 0, False), (0, 1, False), (1, 0, True)])
def test_of_our_own_version_the_last_number_counts(
    out: Path, own: int, flower: int, wrong: bool
) -> None:
    later_by = {"unseen": own, "flower": flower}
    there = {name: later(text, later_by[name]) for name, text in versions().items()}
    with answering(out / "server", site(out).port, **there):
        assert ("versions" in faults(site(out))) == wrong


def later(version: str, by: int) -> str:
    *before, last = version.split(".")
    return ".".join([*before, str(int(last) + by)])


def test_a_kit_that_the_authority_has_not_signed_as_it_is(out: Path) -> None:
    settings = out / "server" / "kit.toml"
    settings.write_text(settings.read_text() + "# changed\n")
    assert "authority signed" in faults(Kit.read(out / "server"))["signature"].text


def test_a_limit_on_messages(out: Path) -> None:
    with answering(out / "server", site(out).port, limit=2**20):
        assert "message size" in faults(site(out))


def test_the_exit_code_says_that_something_is_wrong(out: Path) -> None:
    (out / "north" / "site.key").chmod(0o644)
    shown = CliRunner().invoke(app, ["federation", "doctor", str(out / "north")])
    assert shown.exit_code == 1 and "chmod 600" in shown.output
    assert "PRIVATE" not in shown.output


STUDY = """
dataset = "heart-disease"
model = "mlp(widths=[4])"
[training]
batch_size = {batch}
"""


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """The kit of one hospital, whose data are a stand-in of 24 patients."""
    out = provisioned(tmp_path / "kits", sites={"cleveland": "train", "north": "evaluate"})
    SKETCHES["heart-disease"](tmp_path / "data")
    return out


def of_data(kit: Kit, study: str, data: Path) -> dict[str, Finding]:
    path = kit.folder.parent / "study.toml"
    path.write_text(study)
    names = ("data", "rules", "classes")
    return {f.what: f for f in examine(kit, path, data) if f.what in names}


def test_data_that_fit_the_study(hospital: Path, tmp_path: Path) -> None:
    found = of_data(site(hospital, "cleveland"), STUDY.format(batch=4), tmp_path / "data")
    assert "data" not in found and found["classes"].state == "ok"
    assert found["rules"].state == "warning" and "2 held back" in found["rules"].text
    assert "absent 8, present 16" in found["classes"].text


@pytest.mark.parametrize(
    ("methods", "drop_last", "state"),
    [
        (["fedavg"], True, "fault"),
        (["fedavg", "glm"], False, ""),  # it trains: an epoch is one step
        (["glm", "boost"], True, ""),  # they take no batches
    ],
)
def test_too_few_examples_for_a_batch(
    hospital: Path, tmp_path: Path, methods: list[str], drop_last: bool, state: str
) -> None:
    text = f"methods = {json.dumps(methods)}\n{STUDY.format(batch=64)}"
    study = f"{text}drop_last = {json.dumps(drop_last)}\n"
    found = of_data(site(hospital, "cleveland"), study, tmp_path / "data")["rules"]
    assert ("batch_size to 22" in found.remedy) == (state == "fault")
    assert ("drop_last = false" in found.remedy) == (state == "fault")
    assert found.state == state or not state


def test_classes_that_the_site_lacks(hospital: Path, tmp_path: Path) -> None:
    (file,) = tmp_path.glob("data/**/processed.cleveland.data")
    lines = [line for line in file.read_text().splitlines() if not line.endswith(",0")]
    file.write_text("\n".join(lines) + "\n")
    found = of_data(site(hospital, "cleveland"), STUDY.format(batch=4), tmp_path / "data")
    assert found["classes"].state == "warning" and "label" in found["classes"].remedy


def test_data_that_cannot_be_read(hospital: Path, tmp_path: Path) -> None:
    (file,) = tmp_path.glob("data/**/processed.cleveland.data")
    file.write_text("1,2,3\n")
    found = of_data(site(hospital, "cleveland"), STUDY.format(batch=4), tmp_path / "data")
    assert found["data"].state == "fault"
    found = of_data(site(hospital, "cleveland"), STUDY.format(batch=4), tmp_path / "nowhere")
    assert found["data"].state == "fault"


def test_a_study_that_is_none(hospital: Path, tmp_path: Path) -> None:
    found = of_data(site(hospital, "cleveland"), "datset = 'x'", tmp_path / "data")
    assert found["data"].state == "fault" and "datset" in found["data"].text
