"""What a running request sees and changes of the network's numbers. It never decides when a request runs."""
