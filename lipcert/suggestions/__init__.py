"""Suggestions: settings with which a private run learns more, analysed and ranked.

They are ranked by noise over signal. `engine.suggest` is the data flow; each other module is one
stage of it.
"""
