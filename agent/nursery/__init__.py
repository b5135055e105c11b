"""The nursery, a process of its own that is the parent of all workers, and the guardian, the parent of the nursery.

Imports a little of the standard library and nothing of ours outside this folder, because both processes stay in memory
for the whole job.
"""
