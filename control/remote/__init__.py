"""The control service on TCP (`--control-address`): gRPC with TLS and tokens. Loaded with that flag only.

May import `control/service`, and floors below.
"""
