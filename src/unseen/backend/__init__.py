"""Where clients run: in this process, over processes, on real sites."""
