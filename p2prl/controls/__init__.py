"""The owner's controls of a running worker: limits, pause, sensors, and the socket they come through.

`rules` decides, without I/O, what the worker may do now; `live_controls` reads sensors and requests and asks it.
"""
