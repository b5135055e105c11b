"""The nursery, a process of its own that is the parent of all workers, and the guardian above it.

Imports a little of the standard library and nothing of ours, as it stays in memory for the whole job.
"""
