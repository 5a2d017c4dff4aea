"""What operators set: settings, devices, and what memory and arithmetic come of them. It never serves a request."""
