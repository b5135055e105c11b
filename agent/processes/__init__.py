"""The agent's side of its worker processes: orders to the nursery, its reports, environment, ports, preloading.

May import `agent/`, `agent/nursery`, `agent/output`, `agent/failures` and `rendezvous`.
"""
