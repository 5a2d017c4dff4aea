"""A discrete-event model of many replicas: what latency and cost a fleet would have, before it is bought.

It knows the policy of our engine and of our routing, and how long a step takes. It computes no network, opens no socket
and reads no clock: seconds here are the simulation's.
"""
