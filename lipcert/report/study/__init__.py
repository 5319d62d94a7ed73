"""Study: what several documents of LipCert say of one model, joined for one report."""
