"""The coordinator machine: which nodes are in which round, who caused its end, whom that charges. Pure.

May import the values in `rendezvous/` (records, failures, text); nothing that acts.
"""
