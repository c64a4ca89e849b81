"""What may leave a site: the seam of secure aggregation and differential privacy."""
