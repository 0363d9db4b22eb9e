"""Where clients and jobs run: in this process, in batches, over processes, Ray or Flower."""
