"""Group discrimination on graphs: self-supervised node embeddings, trained in seconds."""
