"""Scripts whose loop is inherited by a child."""

# For scripts that have forked if `child` is not None: the child exits with status 3 when its run
# has ended with the RuntimeError of an inherited loop.
RUN = """
    def run(main):
        try:
            uringloop.run(main())
        except RuntimeError as exc:
            if child != 0 or "inherited through a fork" not in str(exc):
                raise
            os._exit(3)
"""
