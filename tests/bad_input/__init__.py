"""Bad input, by subject: tables of calls that tests/loop/test_bad_input.py makes on two loops."""
