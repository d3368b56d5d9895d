"""The routes of the API, one module per noun; `api/table.py` lists them all."""
