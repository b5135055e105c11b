"""Records to bytes and back: protobuf, of bounded size. Any bytes decode to a record or to an error.

May import `proto` and the values in `rendezvous/`.
"""
