"""Puts this folder on the path, so that tests can share `lowering.py`."""
