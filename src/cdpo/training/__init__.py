"""Training: the loop, collection in the real environment, checkpoints and metrics."""
