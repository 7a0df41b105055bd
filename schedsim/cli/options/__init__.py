"""The options of the commands: how each is read, checked and completed."""
