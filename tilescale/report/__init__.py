"""The report: one HTML file that shows what the database knows and needs nothing else to be read."""
