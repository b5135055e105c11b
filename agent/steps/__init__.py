"""What the agent and its workers agree on at a step boundary, and the files by which people ask for it.

May import `rendezvous`, `proto` and modules of `agent`; not `agent.lifecycle`'s handlers, nor the agent itself.
"""
