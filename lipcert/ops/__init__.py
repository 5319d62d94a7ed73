"""One file per op family, holding every pure rule of that family; `base.Op` is the contract."""
