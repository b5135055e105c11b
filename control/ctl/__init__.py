"""`elasticctl`: what people and scripts ask of running agents, and read in what these have left.

May import `control` and `rendezvous`; never `agent`, whose modules would make each answer slower.
"""
