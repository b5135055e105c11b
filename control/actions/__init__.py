"""What a watch does when it fires: notify, save stacks, touch the switches of the job, run a command.

Imports `control.commands`, `control.notify`, `control.readings`, `control.table`, `rendezvous.text`.
"""
