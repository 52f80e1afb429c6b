"""Boots Debian's kernels under qemu and runs the core of the suite on them: nox -s kernels

`cli` has the options and examines one kernel after the other: `archive` downloads packages,
`image` makes the guest's files, `machine` boots, `results` reads what `guest` has printed on the
console, and `report` writes the tables.
"""
