"""Records to bytes and back: protobuf, bounded; any bytes are answered with a record or an error.

May import `proto` and the values in `rendezvous/`.
"""
