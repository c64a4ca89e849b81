"""What is agreed before a run: errors, plans, sites, schemas. Imports nothing else of FedMVC."""
