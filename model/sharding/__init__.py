"""Division of a network between processes: the heads, neurons and words of each. It starts no process."""
