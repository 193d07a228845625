"""Watch a lab and route traffic around circuits that lost their light."""
