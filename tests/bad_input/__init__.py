"""Bad input, by subject: tables of calls that tests/test_bad_input.py makes on two loops."""
