"""The hospital's half of FedMVC. Importing it loads nothing."""
