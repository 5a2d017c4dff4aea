"""An engine with its network divided between processes. Independent of their computation."""
