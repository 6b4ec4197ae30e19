"""Implementations of `asr.session.Session`."""
