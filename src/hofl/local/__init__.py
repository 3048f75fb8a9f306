"""What a client computes in one local step: bottom rules, surrogates, estimators."""
