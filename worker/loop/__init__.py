"""What surrounds a training loop: the deadline, the log, the progress bar, metrics that survive a restart.

Stands on `worker.values`, `worker.world` and `worker.errors`; imports torch, and nothing of `worker.checkpoints`.
"""
