"""Other methods that spend less memory on a training step, behind one form: see `peers.py`."""
