"""The operations of a graph, one file per family; `base.Op` is the contract."""
