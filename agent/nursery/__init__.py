"""The nursery, a process of its own that is the parent of all workers, and the guardian above it.

Lean: the standard library and, of ours, `agent/processes/protocol.py` only, because it stays in memory for the whole
job.
"""
