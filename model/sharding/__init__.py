"""Splits one network over several processes: which heads, neurons and words each holds. It never starts a process."""
