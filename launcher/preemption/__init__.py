"""Before a job is preempted, and after it is complete: until when its time lasts, notices of clouds, the mark of a
complete training.

May import `control`, `agent`, `rendezvous` and `proto`.
"""
