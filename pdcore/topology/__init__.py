"""The fleet as one immutable value: records, the topology built from them, the events between two of them.

Pure: no I/O, no clock, no randomness, no environment, no logging.
"""
