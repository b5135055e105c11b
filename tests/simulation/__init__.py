"""Whole jobs in one thread, on a clock that only the simulator moves: production machines in a simulated world.

Folders: `world` (clock, nodes, workers), `stores` (what lies between nodes), `checks` (invariants), `schedules`
(faults and how a seed draws them), `mutants` (planted bugs), `election` (of a c10d store's host, simulated by itself
as no agent runs it yet). Here: `run` plays seeds and makes failures small, `campaign` plays many on all cores,
`script` has the verbs of tests/stories. `python -m tests.simulation --seed 7` replays one with its trace. May import
all of elastic_agent; nothing but tests imports it.
"""
