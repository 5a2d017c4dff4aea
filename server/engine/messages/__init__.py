"""Messages between the API process and its workers: requests with tasks and parameters, and outputs."""
