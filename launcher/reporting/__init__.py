"""What people and programs see of a job: console lines, the last line, the summary, the file of events, exceptions.

May import `agent` and `rendezvous`.
"""
