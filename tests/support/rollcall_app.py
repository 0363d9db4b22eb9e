"""A Flower app that asks every site for its name once; for tests of what carries the real one."""

from __future__ import annotations

from pathlib import Path

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "rollcall"
version = "1.0.0"
description = "who is there"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<1.43"]
[tool.flwr.app]
publisher = "tests"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "rollcall.server_app:app"
clientapp = "rollcall.client_app:app"
[tool.flwr.app.config]
study = ""
out = ""
sites = ""
"""
CLIENT = """
import tomllib
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.query()
def query(message, context):
    kit = Path(context.node_config["kit"])
    site = tomllib.loads((kit / "join.toml").read_text())
    found = {"site": context.node_config["site"], "role": site["role"], "data": site["data"]}
    return Message(RecordDict({"found": ConfigRecord(found)}), reply_to=message)
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    out = Path(context.run_config["out"])
    wanted = int(Path(context.run_config["study"]).read_text())
    def write(name, text):
        (out / (name + ".part")).write_text(text)
        (out / (name + ".part")).replace(out / name)
    while len(grid.get_node_ids()) < wanted:
        write("federation.json", json.dumps({"waiting": "for sites", "round": 0, "rounds": 1}))
        time.sleep(0.5)
    nodes = list(grid.get_node_ids())
    messages = [Message(RecordDict(), dst_node_id=n, message_type="query") for n in nodes]
    replies = list(grid.send_and_receive(messages, timeout=60))
    faults = [str(r.error) for r in replies if r.has_error()]
    rows = sorted(tuple(dict(r.content["found"]).items()) for r in replies if not r.has_error())
    found = [dict(row) for row in rows]
    standing = {"round": 0, "rounds": 1, "connected": found, "finished": True}
    write("federation.json", json.dumps({**standing, "error": "; ".join(faults)}))
    write("table.txt", "\\n".join(f"{f['site']} {f['role']}" for f in found))
"""


def write(folder: Path) -> Path:
    """The app as a folder."""
    inner = folder / "rollcall"
    inner.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "LICENSE").write_text("none")
    (folder / "README.md").write_text("who is there")
    (inner / "__init__.py").write_text("")
    (inner / "server_app.py").write_text(SERVER)
    (inner / "client_app.py").write_text(CLIENT)
    return folder
