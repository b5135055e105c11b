"""What runs beside the program: the server that workers get their calls from, and the agent of this node.

Stands on `launcher`, and imports nothing of `in_worker`: workers are other processes.
"""
