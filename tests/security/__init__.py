"""What holds the source and what is shipped to the rules of SECURITY.md."""
