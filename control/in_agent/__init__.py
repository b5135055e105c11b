"""Watches that an agent runs while its job runs: `--watch` and `--notify`. The launcher loads it where they are given.

Threads of their own; the agent's loop waits for none of them. Imports `agent.agent`, `agent.report`, `control`,
`control.actions`, `control.notify`, `control.table`, `control.watcher`, `proto`, `rendezvous`.
"""
