"""Messages to people: channels given as URLs, secrets from files or variables, a thread for each channel.

Standard library only, loaded when a channel is used. Imports `agent.errors`, `control.commands`, `control.decisions`,
`rendezvous.text`.
"""
