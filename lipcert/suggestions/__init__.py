"""What would make a private run learn: settings, analysed and ranked by noise over signal.

`engine.suggest` is the data flow; each other module is one stage of it.
"""
