"""The agent machine: what this node does on each event. Pure: no clock, no process, no store, no logging.

May import the values in `rendezvous/` and `agent/exit_status.py`; nothing that acts.
"""
