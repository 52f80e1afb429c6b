"""Known races of published code, in `programs`: `seeds` runs one under seeds, `cli` all of them."""
