"""The experiments of the SoftSort paper, on top of softorder: `softorder run sort --n 5`.

A run goes from a command (`commands.run`) to `launch.run_task`, then to the training loop in
`engine`, which calls the task. `tasks` holds one file per experiment, `data` the images, and
`measuring` the tools for time and memory. Importing this package imports nothing heavy.
"""
