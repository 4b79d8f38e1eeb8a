"""Suspects: instances whose keys vanished without a reason, and those that do not answer although their keys are there."""
