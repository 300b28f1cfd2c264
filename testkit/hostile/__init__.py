"""One tenant sends the worst that it may while others go on: what it costs them."""
