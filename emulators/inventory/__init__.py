"""What a lab is made of, read from the files of its inventory directory."""
