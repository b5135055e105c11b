"""The agent machine: what this node does on each event. Pure: no clock, no process, no store, no logging.

May import the values in `rendezvous/`, the driver's events among them, and `agent/exit_status.py`; nothing that acts.
"""
