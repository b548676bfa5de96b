"""Jobs: what people ask to be run, what becomes of it, and how an attempt is made ready.

What does not live here: the decisions (schedule/), the loop that carries them out (dispatch/), clusters and queues
(fleet/), what runs on a node (worker/).
"""
