"""A site whose installation was changed: it answers wrongly in the rounds that a plan names.

`install(folder, plan)` copies the installed package into a folder and changes its two ends that the
network sees; a site started with that folder first on its PYTHONPATH is a faulty one. Its server
and the other sites run what is installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

#: What can be wrong, and in which words a drill says it.
FAULTS = {
    "nan": "sends NaN",
    "short": "sends a vector that is one value short",
    "old": "holds a model of another layout",
    "twice": "sends its answer twice",
    "late": "answers after the deadline",
    "huge": "sends a row of 1e38",
    "many": "claims 1e15 examples",
    "large": "sends 64 MiB",
    "words": "sends a vector where a refusal has words",
    "half": "announces an answer and sends no part of it",
}
CLIENT = '''"""As the app's end of the same name, with the faults of a drill."""

import json
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from unseen.sites.flower import site_handler
from unseen.sites.flower import terms
from unseen.sites.flower.site import Site
from unseen.engine.messages import pack, unpack

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    question, site = unpack(message.content), Site.read(str(context.node_config["kit"]))
    position = json.loads(str(question["head"])).get("position") or {{}}
    due = {plan!r}.get(position.get("round", -2) + 1)
    fault = due if position.get("exchange") == "train" else None
    if fault == "late":
        time.sleep({late})
    if fault == "old":
        right = terms.fingerprint
        terms.fingerprint = lambda model: "old" + right(model)
    answer = site_handler.handle(question, site)
    if fault == "nan":
        answer["row/model"] = answer["row/model"] * float("nan")
    if fault == "huge":
        answer["row/model"] = answer["row/model"] * 0 + 1e38
    if fault == "many":
        answer["scalar/examples"] = 1e15
    if fault == "large":
        answer["row/model"] = answer["row/model"].new_zeros(2**24)
    if fault == "words":
        answer["refused"] = answer["row/model"][:2]
    if fault == "half":
        (Path(str(context.node_config["kit"])) / "state" / "half").touch()
    if fault == "short":
        answer["row/model"] = answer["row/model"][:-1]
    return Message(pack(answer), reply_to=message)
'''
NODE = '''

def _changed() -> None:
    """Answers are sent twice, or not to their end."""
    from flwr.supernode import start_client_internal as flower

    push, twice = flower._push_messages, {twice!r}
    half = Path(os.environ["FLWR_HOME"]).parent / "state" / "half"

    def pushed(state, object_store, send, push_object):
        def again(message, *rest):
            wanted, session = send(message, *rest)
            for id in wanted:
                push_object(message.metadata.run_id, session, id, object_store.get(id))
            return send(message, *rest)

        def part(*rest):
            if not half.exists():
                push_object(*rest)

        push(state, object_store, again if twice else send, part)
        half.unlink(missing_ok=True)

    flower._push_messages = pushed


if __name__ == "__main__":
    _changed()
'''


def install(folder: Path, plan: Mapping[int, str], late: float = 0.0) -> Path:
    """A changed copy of the package; what to put first on PYTHONPATH.

    plan: round, from 1 -> one of FAULTS; with `twice` anywhere in it all answers are sent twice.
    late: seconds.
    """
    import unseen

    if unknown := set(plan.values()) - set(FAULTS):
        raise ValueError(f"no faults: {', '.join(sorted(unknown))}")
    own = Path(unseen.__file__).parent
    copy = folder / "unseen"
    shutil.copytree(own, copy, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (copy / "sites/flower/client_app.py").write_text(CLIENT.format(plan=dict(plan), late=late))
    if {"twice", "half"} & set(plan.values()):
        node = copy / "sites/supernode.py"
        before, _, after = node.read_text().rpartition('\n\nif __name__ == "__main__":')
        changed = NODE.replace("{twice!r}", repr("twice" in plan.values()))
        node.write_text(before + changed + after.lstrip("\n"))
    return folder
