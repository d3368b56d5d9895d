"""HTTP for the kinds that speak it: requests, the shared session, who is asking, bodies."""
