"""The numerical cores. Each works on one layout: batch dimensions first, items last.

A score is sorted once (`scores`), a relaxation says what its weights are (`spec`), `dispatch` picks
an engine (`dense`, `tiled`, `portable`, `native`). README.md beside this file has the derivations.
"""
