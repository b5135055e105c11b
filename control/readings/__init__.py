"""What is read: one reader for each kind of watch. None of them blocks for ever, whatever the file system does.

Reads /proc, cgroup files, file systems through a helper process, commands. Imports `control.commands`,
`control.decisions`, `control.table`, `rendezvous.text`.
"""
