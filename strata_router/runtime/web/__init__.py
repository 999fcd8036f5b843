"""The routes that are not inference: models, health, metrics, records."""
