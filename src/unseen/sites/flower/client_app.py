"""The end of the Flower app that runs with a site's SuperNode, in a new process per message."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from unseen.engine.messages import pack, unpack
from unseen.sites.flower.site_handler import answer_from
from unseen.sites.process import log_in_lines

app = ClientApp()
log_in_lines()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer one message with the site of the kit that the SuperNode was started with."""
    kit = Path(str(context.node_config["kit"]))
    return Message(pack(answer_from(kit, unpack(message.content))), reply_to=message)
