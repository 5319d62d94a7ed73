"""Reports: one file per format. They print records and do no algebra."""
