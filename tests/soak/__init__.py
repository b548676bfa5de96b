"""The soak: a platform under load and faults for as long as one likes, and a verdict on what it kept."""
