"""The experiments of the SoftSort paper, on top of softorder: `softorder run sort --n 5`.

Imports nothing heavy by itself. `tasks` holds one file per experiment, `engine` the one training
loop that serves them all, `data` the images, `cli` the command line.
"""
