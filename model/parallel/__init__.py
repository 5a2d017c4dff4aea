"""One network over several processes: each holds a share of every block's heads, neurons and words."""
