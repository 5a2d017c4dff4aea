"""One model in several processes: the leader and its followers. Independent of the scheduling of requests."""
