"""File formats that `perfdb import` reads, one a file: see `perfdb.importing.Importer`."""
