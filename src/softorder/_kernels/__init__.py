"""The numerical cores. Each works on one layout: batch dimensions first, items last.

`scores` cleans and sorts, `dense` is the readable reference, `hard` holds the operators that
wrap another or none. README.md beside this file has the derivations.
"""
