"""What else spends less memory on a training step, behind one form: see `peers.py`."""
