"""What orchestrators and workers say to each other."""
