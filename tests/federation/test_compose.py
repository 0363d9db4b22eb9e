"""The files under deploy/: Compose by its schema, units by systemd, commands by their help."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unseen.sites.kits.kit_spec import Federation

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))

TEXTS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
DURATION = {"type": "string", "pattern": r"^(\d+(\.\d+)?(us|ms|s|m|h))+$"}
COMMAND = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
NAME = "^[a-zA-Z0-9._-]+$"
#: The Compose Specification as published, written out here for the keys that the file uses; every
#: other key is refused.
SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
        "services": {
            "type": "object",
            "additionalProperties": False,
            "patternProperties": {NAME: {"$ref": "#/definitions/service"}},
        },
        "networks": {
            "type": "object",
            "additionalProperties": False,
            "patternProperties": {
                NAME: {
                    "type": ["object", "null"],
                    "additionalProperties": False,
                    "properties": {"driver": {"type": "string"}, "internal": {"type": "boolean"}},
                }
            },
        },
    },
    "definitions": {
        "service": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "image": {"type": "string"},
                "build": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "context": {"type": "string"},
                        "dockerfile": {"type": "string"},
                    },
                },
                "user": {"type": "string"},
                "restart": {
                    "type": "string",
                    "pattern": r"^(no|always|unless-stopped|on-failure(:\d+)?)$",
                },
                "stop_grace_period": DURATION,
                "init": {"type": "boolean"},
                "read_only": {"type": "boolean"},
                "tmpfs": {"oneOf": [{"type": "string"}, TEXTS]},
                "cap_drop": TEXTS,
                "security_opt": TEXTS,
                "networks": TEXTS,
                "command": COMMAND,
                "volumes": {
                    **TEXTS,
                    "items": {"type": "string", "pattern": "^[^:]+:/[^:]+(:ro)?$"},
                },
                "ports": {
                    "type": "array",
                    "uniqueItems": True,
                    "items": {"type": "string", "pattern": r"^([\d.]+:)?\d+:\d+(/(tcp|udp))?$"},
                },
                "depends_on": {
                    "type": "object",
                    "additionalProperties": False,
                    "patternProperties": {
                        NAME: {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["condition"],
                            "properties": {
                                "condition": {
                                    "enum": [
                                        "service_started",
                                        "service_healthy",
                                        "service_completed_successfully",
                                    ]
                                },
                                "restart": {"type": "boolean"},
                                "required": {"type": "boolean"},
                            },
                        }
                    },
                },
                "healthcheck": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "test": COMMAND,
                        "interval": DURATION,
                        "timeout": DURATION,
                        "start_period": DURATION,
                        "retries": {"type": "integer", "minimum": 1},
                    },
                },
            },
        }
    },
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra flower")
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(found, dict)
    return found


def test_the_compose_file_keeps_to_the_schema(compose: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="comes with the extras")
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(compose, SCHEMA)
    for wrong in ({"comand": ["x"]}, {"restart": "sometimes"}, {"ports": ["x"]}):
        services = {**compose["services"], "va": {**compose["services"]["va"], **wrong}}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**compose, "services": services}, SCHEMA)


def test_the_compose_file_keeps_to_the_published_schema(compose: dict[str, Any]) -> None:
    """`schema/compose-spec.json` of the Compose Specification, as UNSEEN_DATA/compose-spec.json."""
    jsonschema = pytest.importorskip("jsonschema", reason="comes with the extras")
    path = Path(os.environ.get("UNSEEN_DATA", "")) / "compose-spec.json"
    if not os.environ.get("UNSEEN_DATA") or not path.is_file():
        pytest.skip("no compose-spec.json, the published schema, in the folder UNSEEN_DATA")
    validator = jsonschema.Draft7Validator(json.loads(path.read_text("utf-8")))
    assert [error.message for error in validator.iter_errors(compose)] == []
    services = {**compose["services"], "va": {**compose["services"]["va"], "comand": "x"}}
    assert not validator.is_valid({**compose, "services": services})


def test_podman_compose_reads_the_compose_file(compose: dict[str, Any]) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra flower")
    tool = shutil.which("podman-compose")
    if tool is None or shutil.which("podman") is None:
        pytest.skip("podman-compose and podman are not both on this machine")
    variables = {**os.environ, "UNSEEN_UID": "1234", "UNSEEN_GID": "1235"}
    command = [tool, "-f", str(DEPLOY / "compose.yaml"), "config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)
    assert done.returncode == 0, done.stderr
    resolved = yaml.safe_load(done.stdout)["services"]
    assert set(resolved) == set(compose["services"])
    for name, service in resolved.items():
        assert service["user"] == "1234:1235" and service["read_only"]
        assert service["command"] == compose["services"][name]["command"]


def test_the_compose_file_is_of_the_federation_beside_it(compose: dict[str, Any]) -> None:
    federation = Federation.read(DEPLOY / "federation.toml")
    services = compose["services"]
    assert set(services) == {"server", *federation.sites}
    assert federation.servers[0] == "server" and federation.bind == "0.0.0.0"
    assert services["server"]["ports"] == [f"{federation.port}:{federation.port}"]
    for name, service in services.items():
        kits = [v for v in service["volumes"] if "/kits/" in v]
        assert kits == [f"./kits/{name}:/kit"]  # its own kit, and no other
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert set(service["networks"]) <= set(compose["networks"])
        if name != "server":
            assert service["volumes"][1] == f"./data/{name}:/data:ro"
            assert "ports" not in service
            assert set(service["depends_on"]) == {"server"}


def test_the_commands_are_those_of_the_command_line(compose: dict[str, Any]) -> None:
    from typer.testing import CliRunner

    from unseen.cli.main import app

    lines = [service["command"] for service in compose["services"].values()]
    lines.append(compose["services"]["server"]["healthcheck"]["test"][2:])
    for unit in UNITS:
        for line in re.findall(r"^Exec\w+=(.*)$", unit.read_text(), re.MULTILINE):
            lines.append(line.split()[1:])
    for words in lines:
        shown = CliRunner().invoke(app, [*words[:2], "--help"])
        assert shown.exit_code == 0, words
        text = re.sub(r"\x1b\[[0-9;]*m", "", shown.output)
        assert all(word in text for word in words if word.startswith("--")), words


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_pass_systemd_analyze_verify(unit: Path, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not on this machine")
    # The program must exist to be verified: a file that does stands for the installed one.
    text = unit.read_text()
    assert "/opt/unseen/bin/unseen " in text
    path = tmp_path / unit.name.replace("@", "@cleveland")
    path.write_text(text.replace("/opt/unseen/bin/unseen", sys.executable))
    done = subprocess.run([tool, "verify", str(path)], capture_output=True, text=True, timeout=60)
    # Unknown keys are only warned of, so that silence is what passes.
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    path.write_text(text.replace("/opt/unseen/bin/unseen", "/no/such/program"))
    assert subprocess.run([tool, "verify", str(path)], capture_output=True, timeout=60).returncode


def test_there_are_units_for_server_and_sites() -> None:
    assert [unit.name for unit in UNITS] == ["unseen-server.service", "unseen-site@.service"]
