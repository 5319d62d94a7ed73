"""Reports: one file per format. They print records and compute no bounds."""
