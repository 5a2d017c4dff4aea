"""Turns schemas, patterns and grammars into what llguidance reads, and says what may follow. It never knows requests."""
