"""What the commands take: each option with how it is read, checked and completed."""
