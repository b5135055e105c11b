"""What a watch does when it fires: notify, save stacks, touch the switches of the job, run a command.

Imports `control.commands`, `control.decisions`, `control.job_view`, `control.notify`, `control.readings`,
`control.table`, `rendezvous.codec.digest`, `rendezvous.text`.
"""
