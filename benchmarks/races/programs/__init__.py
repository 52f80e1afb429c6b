"""The programs: `main()` has a race, `forced()` puts its steps into the order that fails."""
