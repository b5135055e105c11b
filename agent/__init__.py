"""One node's agent: joins the rendezvous, starts workers, watches them, stops them, and ends with a status.

Here: the agent itself (`agent.py`), its loop and queue, its errors and its specification. What decides is in
`lifecycle/`. May import `rendezvous` and `proto`.
"""
