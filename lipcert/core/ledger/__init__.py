"""The ledger: what a certificate assumes, as typed premises and in words."""
