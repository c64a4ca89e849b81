"""The operator's half of FedMVC. Importing it loads nothing."""
