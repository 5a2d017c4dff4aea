"""Says what a running request captures and changes of the network's numbers. It never decides when a request runs."""
