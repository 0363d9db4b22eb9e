"""Numbers for Prometheus, at a port of this machine: what a site sent, and how a run stands.

They are read from the files that a site and a run write anyway, when somebody asks for them.
Nothing of data, models or updates is among them, and no other machine can ask.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError, optional
from unseen.federation.kits.closed import closed
from unseen.federation.kits.kit import ACCOUNT, Kit
from unseen.federation.policy.approvals import Approvals
from unseen.federation.policy.site_ledger import SiteLedger
from unseen.federation.policy.site_policy import SitePolicy
from unseen.federation.policy.spending import epsilon
from unseen.federation.standing import MESSAGES, STANDING, content_of, whole_lines
from unseen.results.records import LEDGER

#: Of a server's kit: which records the last run writes.
RUN = "run.json"
#: Metric -> what it counts and by what, and whether it only grows.
FAMILIES: Mapping[str, tuple[str, tuple[str, ...], bool]] = {
    "unseen_site_answers": ("Answers of this site", ("kind",), True),
    "unseen_site_refusals": ("Questions that this site refused", ("rule",), True),
    "unseen_site_sent_bytes": ("Bytes that left this site", ("form",), True),
    "unseen_site_rounds": ("Rounds of a study that this site answered in", ("study",), False),
    "unseen_site_waiting": ("Studies that wait for an approval here", (), False),
    "unseen_site_epsilon": ("ε of all that left this site", ("protects",), False),
    "unseen_run_round": ("Round that is played, from 1", (), False),
    "unseen_run_rounds": ("Rounds of the job", (), False),
    "unseen_run_connected": ("Sites that are connected", (), False),
    "unseen_run_waiting": ("Whether the run waits for sites", (), False),
    "unseen_run_finished": ("Whether the study is finished", (), False),
    "unseen_run_failed": ("Whether an error ended the run", (), False),
    "unseen_run_bytes": ("Bytes to and from a site", ("site", "direction"), True),
    "unseen_run_faults": ("Questions that a site gave no usable answer to", ("site",), True),
    "unseen_run_epsilon": ("ε so far of what left a site", ("site", "protects"), False),
}
#: Metric and the values of its labels -> its value.
Samples = Mapping[tuple[str, tuple[str, ...]], float]


def of_run(kit: Kit) -> Samples:
    """Return how the last run of a server stands.

    Args:
        kit: The server's kit.
    """
    out = Path(str(content_of(kit.state / RUN).get("out", "")))
    if not out.is_absolute():
        return {}
    news, count = content_of(out / STANDING), Counter[tuple[str, tuple[str, ...]]]()
    numbers: dict[tuple[str, tuple[str, ...]], float] = {
        ("unseen_run_round", ()): float(news.get("round", -1)) + 1,
        ("unseen_run_rounds", ()): float(news.get("rounds", 0)),
        ("unseen_run_connected", ()): len(news.get("connected", ())),
        ("unseen_run_waiting", ()): float(bool(news.get("waiting"))),
        ("unseen_run_finished", ()): float(bool(news.get("finished"))),
        ("unseen_run_failed", ()): float(bool(news.get("error"))),
    }
    for path in (out / MESSAGES, *(out / "records").rglob(MESSAGES)):
        for line in whole_lines(path):
            site = str(line.get("site"))
            for way in ("down", "up"):
                count["unseen_run_bytes", (site, way)] += line.get(way, 0)
            count["unseen_run_faults", (site,)] += bool(line.get("fault"))
    for path in (out / "records").rglob(LEDGER):
        for line in whole_lines(path):
            for protects, values in line.get("epsilon", {}).items():
                for site, value in zip(line["clients"], values, strict=True):
                    if value is not None:
                        numbers["unseen_run_epsilon", (site, protects)] = value
    return {**numbers, **count}


def of_site(kit: Kit) -> Samples:
    """Return what left a site, by its own ledger.

    Args:
        kit: The site's kit.
    """
    count = Counter[tuple[str, tuple[str, ...]]]()
    lines = SiteLedger(kit.folder / ACCOUNT).lines()
    rounds: dict[str, set[tuple[str, int]]] = {}
    for line in lines:
        if "rule" in line:
            count["unseen_site_refusals", (str(line["rule"]),)] += 1
        elif "answer" in line:
            count["unseen_site_answers", (str(line["kind"]),)] += 1
        for item in line.get("left", ()):
            count["unseen_site_sent_bytes", (str(item["form"]),)] += item["bytes"]
        if "round" in line and "rule" not in line:
            played = rounds.setdefault(str(line.get("name")), set())
            played.add((str(line.get("job")), int(line["round"])))
    numbers: dict[tuple[str, tuple[str, ...]], float] = dict(count)
    numbers |= {("unseen_site_rounds", (name,)): len(own) for name, own in rounds.items()}
    policy, requests = SitePolicy.read(kit.folder), Approvals(kit.folder / ACCOUNT).every()
    open_requests = [r for r in requests if not r.approval and policy.approval == "wait"]
    numbers["unseen_site_waiting", ()] = len(open_requests)
    spent_by = epsilon(lines, policy.most.delta)
    return numbers | {("unseen_site_epsilon", (name,)): x for name, x in spent_by.items()}


class Collector:
    """What Prometheus' client asks when somebody reads the page.

    Args:
        read: Returns the numbers as they are now.
    """

    def __init__(self, read: Callable[[], Samples]) -> None:
        self.read = read

    def collect(self) -> Iterator[Any]:
        """Yield every metric that has a value."""
        core = client().metrics_core
        samples = self.read()
        for name, (what, labels, grows) in FAMILIES.items():
            own = {values: x for (metric, values), x in samples.items() if metric == name}
            if not own:
                continue
            family = core.CounterMetricFamily if grows else core.GaugeMetricFamily
            metric = family(name, what, labels=labels)
            for values, number in sorted(own.items()):
                metric.add_metric(values, number)
            yield metric


def client() -> Any:
    """Return Prometheus' client, of the extra `monitor`."""
    return optional("prometheus_client", "--metrics needs", "monitor", "leave it out")


@contextmanager
def exposed(port: int | None, read: Callable[[], Samples]) -> Iterator[None]:
    """Show numbers at http://127.0.0.1:PORT/metrics meanwhile; nothing without a port.

    Args:
        port: The port.
        read: Returns the numbers as they are now.
    """
    if port is None:
        yield
        return
    prometheus = client()
    registry = prometheus.CollectorRegistry()
    registry.register(Collector(read))
    try:
        server, thread = prometheus.start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        what = f"--metrics {port}: 127.0.0.1:{port} cannot be had ({error.strerror})."
        raise UnseenError(what, remedy="Choose another port.") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def point_to(kit: Kit, out: Path) -> None:
    """Note which records a server's run writes."""
    with closed():
        write_atomically(kit.state / RUN, json.dumps({"out": str(out)}).encode())
