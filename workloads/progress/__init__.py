"""What a rank tells of itself: records of iterations, its heartbeat, what it is about to send."""
