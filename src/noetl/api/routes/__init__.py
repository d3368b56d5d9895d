"""The routes of the API, one module per noun; `server/table.py` lists them all."""
