"""The one room that touches what PyTorch does not document, a module for each subject.

No other module reaches for a private name of torch. Each function has a test of its own: where a
new torch moves something, it fails first, and by name. `tested_versions` says which versions ran.
"""
