"""What an agent answers when somebody asks it: a unix socket in its run directory, HTTP/1.1 with JSON, by its own loop.

May import `control`, and floors below. `control/control_socket.py` is all that an agent loads which nobody asks.
"""
