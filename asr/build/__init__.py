"""Offline: from a checkpoint to the files that a Session runs."""
