"""The ports of members that cannot pick their own: laid out, probed, and held against other supervisors."""
