"""Where a server listens, what it tells strangers, and one start of a kit alone."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.kits import federation, provisioned

from unseen.errors import UnseenError
from unseen.sites import port, serve, superlink
from unseen.sites.kits.kit import Kit
from unseen.sites.kits.kit_spec import Federation
from unseen.sites.policy.site_policy import SitePolicy
from unseen.sites.policy.study_rules import breaches
from unseen.sites.probe import PROBE, Answer, other_versions
from unseen.sites.process import check_port, free_port
from unseen.studies.settings.study import StudySpec


@pytest.mark.parametrize(
    ("servers", "address"),
    [
        (("localhost",), "127.0.0.1"),
        (("localhost", "127.0.0.1"), "127.0.0.1"),
        (("::1",), "::1"),
        (("::1", "localhost"), "::1"),
        (("2001:db8::1",), "::"),
        (("fed.example.org", "2001:db8::1"), "::"),
        (("fed.example.org",), "0.0.0.0"),
        (("192.0.2.7",), "0.0.0.0"),
    ],
)
def test_the_server_listens_where_its_sites_look(servers: tuple[str, ...], address: str) -> None:
    assert federation(servers=servers).bind == address
    assert federation(servers=servers, listen="127.0.0.1").bind == "127.0.0.1"


@pytest.mark.parametrize("host", ["::1", "::", "127.0.0.1", "0.0.0.0"])
def test_what_is_said_to_be_bound_is_reached(host: str) -> None:
    number = free_port()
    if ":" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    check_port(host, number, "kit.toml")
    with port.listener(host, number):
        near = {"::1": "::1", "127.0.0.1": "127.0.0.1", "::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}
        socket.create_connection((near[host], number), timeout=10).close()
        with pytest.raises(UnseenError, match="port taken"):
            check_port(host, number, "kit.toml")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        "a..b", ".a", "a.", "127.1", "0x7f.1", "0x7f", "999.1.1.1", "1.2.3", "12345", "a.b.0x1",
        "fe80::1%lo", "fe80::1%25eth0", "-a.org", "a-.org", "a" * 64 + ".org", "https://a", "a:1",
        "a b", "1.2.3.4.5", "",
    ],
)  # fmt: skip
def test_what_is_no_host_names_no_server(host: str) -> None:
    with pytest.raises(UnseenError, match="servers"):
        federation(servers=(host,))


@pytest.mark.parametrize(
    "host",
    ["localhost", "fed.example.org", "a-b.c", "1a.2b", "3com.com", "x_y", "127.0.0.1", "::1",
     "a" * 63 + ".org", "xn--bcher-kva.example", "7.example"],
)  # fmt: skip
def test_hosts_are_hosts(host: str) -> None:
    assert federation(servers=(host,)).servers == (host,)


def probed(peer: str) -> dict[str, Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: Any = {
        "type": "http", "path": PROBE, "client": (peer, 5000), "server": ("192.0.2.1", 9443),
        "headers": [], "scheme": "https", "method": "POST", "query_string": b"",
    }  # fmt: skip
    asyncio.run(superlink.Guard(None)(scope, receive, send))  # type: ignore[arg-type]
    return dict(json.loads(sent[1]["body"]))


def test_strangers_are_told_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "BEGUN", -1e6)
    stranger = probed("192.0.2.9")
    assert {*stranger} == {"time", "registered", "name", "bytes", "up"} and stranger["up"] == 20
    assert other_versions(Answer(content=stranger)) is None
    for answer in (probed("127.0.0.1"), probed("192.0.2.1")):
        assert {"unseen", "flower"} <= {*answer} and answer["up"] > 1e5


def test_a_second_start_of_a_kit_says_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = provisioned(tmp_path / "kits")
    kit = Kit.read(out / "north")

    def asked(kit: Kit) -> Answer:
        raise AssertionError("the server was asked")

    monkeypatch.setattr(serve, "ask", asked)
    kit.state.mkdir(mode=0o700, exist_ok=True)
    with serve.alone(kit), pytest.raises(UnseenError, match="north takes part already"):
        serve.join(kit, tmp_path)
    with serve.alone(kit):  # the first one has ended
        pass


@pytest.mark.parametrize("channel", ["os:system", "foo", "os:system(x=1)"])
def test_a_channel_that_is_none_is_refused_in_words(channel: str) -> None:
    study = StudySpec(dataset="rotated-digits", methods=("fedavg",), privacy={"channel": channel})
    (breach, *_) = breaches(SitePolicy(), study)
    words = f"{breach.rule}: {breach.why}"
    assert words.startswith(
        "code: the study names 'os:system'" if ":" in channel else "least.channel: the channel is"
    )


def test_a_federation_says_where_it_listens() -> None:
    text = federation(servers=("::1",)).text()
    assert 'listen = "::1"' in text and isinstance(federation(servers=("::1",)), Federation)
