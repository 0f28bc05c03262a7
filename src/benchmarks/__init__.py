"""What ``python -m src.benchmark`` measures, how it takes the time, and what it writes."""
