"""The end of the Flower app that runs with the SuperLink."""

import os

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from unseen.sites import flower_workarounds
from unseen.sites.flower import choice_run
from unseen.sites.flower.model_run import train
from unseen.sites.flower.pulls import counted
from unseen.sites.flower.server_run import run
from unseen.sites.kits.closed import umask
from unseen.sites.process import UMASK, log_in_lines

app = ServerApp()
log_in_lines()
flower_workarounds.bound_answers(counted)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a study over the sites, choose among recipes, or train one model.

    Run config: study; out; sites, a comma-separated list; for a choice its options as choose; for a
    model its directory as model, and the method, if it is not the study's.
    """
    os.umask(int(os.environ.get(UMASK, f"{umask():o}"), 8))
    config = context.run_config
    sites = [name.strip() for name in str(config.get("sites", "")).split(",") if name.strip()]
    if model := str(config.get("model", "")):
        train(str(config["study"]), model, grid, sites, str(config.get("method", "")))
    elif options := str(config.get("choose", "")):
        choice_run.run(str(config["study"]), str(config["out"]), grid, options, sites)
    else:
        run(str(config["study"]), str(config["out"]), grid, sites)
