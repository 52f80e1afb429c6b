"""A directory that holds a package `uvloop`; `uringloop.as_uvloop` puts it on PYTHONPATH.

Unless this directory is on sys.path, `import uvloop` does not find that package.
"""
