"""The agent machine: what this node does on each event. Pure: no clock, no process, no store, no logging.

May import `rendezvous/coordinator` and the values in `rendezvous/`; nothing that acts.
"""
