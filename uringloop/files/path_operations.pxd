"""Operations on paths: Python functions only, so nothing is declared for other modules."""
