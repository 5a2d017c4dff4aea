"""What runs in a worker process around its engine. It never knows HTTP, nor who started the process."""
