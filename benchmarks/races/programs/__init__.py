"""The programs: `main()` has a race; `forced()` runs its steps in the order that fails."""
