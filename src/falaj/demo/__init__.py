"""The story of Falaj, told on a throw-away platform: a list of chapters, each of which does what it says.

What lives here: the chapters and how they are told. What does not: anything the platform needs; a chapter calls the
same verbs as every user.
"""

from falaj.demo.runner import main

__all__ = ["main"]
