"""The server half of each method and the words both sides speak. Importing it loads nothing."""
