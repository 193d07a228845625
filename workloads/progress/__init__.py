"""What a rank tells of itself: records of iterations, its beat, what it is about to send."""
