"""Analysis: from an imported model and the settings of a planned run to certified sensitivities.

`pipeline.analyze` is the data flow; each other module is one of its stages.
"""
