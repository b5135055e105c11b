"""What people and programs are shown: console lines, the file of events, the summary, exceptions.

May import `agent` and `rendezvous`.
"""
