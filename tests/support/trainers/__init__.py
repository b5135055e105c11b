"""What tests of the trainer run: creators, operators, and programs of nodes and of trials. Imports `elastic_agent`."""
