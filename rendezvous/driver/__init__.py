"""Between the machines and a store: threads that make blocking calls and pass the answers on as events.

May import `rendezvous/codec`, `rendezvous/coordinator` and the contract in `rendezvous/store.py`, but no store.
"""
