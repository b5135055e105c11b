"""What observes a job and notifies people: watches, their actions, notifications, the control service.

May import `proto`, `rendezvous` and `agent`; importing it loads nothing, so that an agent without it pays nothing.
"""
