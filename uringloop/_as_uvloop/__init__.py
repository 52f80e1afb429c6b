"""A folder for PYTHONPATH, with a package `uvloop` inside; `uringloop.as_uvloop` puts it there.

Where this folder is not on sys.path, `import uvloop` does not find that package.
"""
