"""What runs in a worker process around its engine, and the only room that knows LitServe. It never knows HTTP."""
