"""The end of the Flower app that runs with a site's SuperNode, in a new process per message."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from unseen.engine.messages import pack, unpack
from unseen.federation.flower.site import Site
from unseen.federation.flower.site_handler import handle

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer one message with the site of the kit that the SuperNode was started with."""
    site = Site.read(str(context.node_config["kit"]))
    return Message(pack(handle(unpack(message.content), site)), reply_to=message)
