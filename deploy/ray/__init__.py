"""The engine on Ray: a Serve application, and batch jobs with Ray Data."""
